"""Threats by name: what they compute, what is proved of them, how large they are (see also test_region_harness)."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

import surebound as sb
from surebound.attack.box import InnerBox
from surebound.cli import build_app
from surebound.cli.output import Format
from surebound.cli.radius import conclusion, show
from surebound.errors import InputError, RegionError, StoreError
from surebound.report.headline import headline
from surebound.report.source import read_run
from surebound.threats import Changed, Gamma, Hue, Rotation, Translation, Zoom, substitutions
from surebound.verify.radius import ImageRadius

CLIP = (0.0, 1.0)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(60, 8), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(*layers).requires_grad_(False)


@pytest.fixture(scope="module")
def x():
    x = torch.rand(2, 3, 6, 5, generator=torch.Generator().manual_seed(1))
    x[0, 0, 0], x[1, 1, 1] = 0, 1  # the ends of the valid range
    return x


def margins(network, points, labels):
    z = network(points)
    return z - z.gather(1, labels[:, None])


def colours_turned(image, angle):
    """Turn colours about the grey axis by the exponential of its matrix, in float64."""
    generator = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]], dtype=torch.float64) / math.sqrt(3)
    turned = torch.matrix_exp(math.radians(angle) * generator)
    return torch.einsum("ij,bjhw->bihw", turned, image.double()).clamp(0, 1).float()


def test_modules_compute_powers_and_turned_colours(x):
    gamma, hue = Gamma(x.shape[1:], 0.5, CLIP), Hue(x.shape[1:], 90, CLIP)
    for a in torch.linspace(-1, 1, 9).tolist():
        theta = torch.full((2, 1), a)
        power = (x.double() ** (1 + 0.5 * a)).float()
        assert torch.allclose(gamma(0.5 * theta, x)[x > 1 / 256], power[x > 1 / 256], atol=1e-5)
        assert float((gamma(0.5 * theta, x) - power).abs().max()) < 0.05
        assert torch.allclose(hue(90 * theta, x), colours_turned(x, 90 * a), atol=1e-5)


def test_sizes_of_a_combination_are_exact(net, x):
    whole = sb.threat("linf:1/10+rotation:5deg + brightness:1/15")
    network, region = whole.against(net, x, CLIP)
    radii = [region.eps * Fraction(v) for v in region.scale.flatten().tolist()]
    assert radii == [Fraction(5), Fraction(1, 15), *[Fraction(1, 10)] * x[0].numel()]
    assert str(whole) == "linf:1/10+rotation:5+brightness:1/15" and not whole.in_pixels
    first, second = (sb.threat(part).against(net, x, CLIP)[0].transform for part in str(whole).split("+")[1:])
    theta = torch.tensor([[3.0, 0.05]]).expand(2, 2)
    moved = x + 0.1
    expected = second(theta[:, 1:], first(theta[:, :1], moved.clamp(0, 1)))
    assert torch.allclose(network.image(torch.cat([theta, moved.flatten(1)], 1)), expected)
    point = torch.cat([theta[:1], moved[:1].flatten(1)], 1)
    nothing = sb.threat("brightness:0+contrast:0").against(net, x, CLIP)[1]
    assert point.shape[1] == region.x.shape[1] and nothing.eps == 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_patches_hold_wherever_they_are(net, x, size):
    """Every place and random contents, put into the image by slices, against the bounds of the place."""
    asked = sb.threat(f"patch:{size}")
    network, region = asked.against(net, x, CLIP)
    places = asked.each(x)
    assert places == (7 - size) * (6 - size) and len(region.x) == 2 * places
    labels = net(x).argmax(1).repeat_interleave(places)
    upper = torch.fmin(*(sb.worst_margins(network, region, labels, method=m) for m in ("interval", "crown")))
    draw, box = torch.Generator().manual_seed(3), InnerBox.of(region)
    for number in range(2 * places):
        image, place = divmod(number, places)
        row, column = divmod(place, 6 - size)
        content = torch.rand(20, 3, size, size, generator=draw)
        content[::2] = content[::2].round()
        pictures = x[image].repeat(20, 1, 1, 1)
        pictures[:, :, row : row + size, column : column + size] = content
        assert bool((margins(net, pictures, labels[number].expand(20)) <= upper[number]).all())
        point = (
            box.lower[number] + torch.rand(box.lower[number].shape, generator=draw) * (box.upper - box.lower)[number]
        )
        outside = network.image(point[None])[0] != x[image]
        outside[:, row : row + size, column : column + size] = False
        assert not bool(outside.any())  # nothing but the patch is changed, not by a bit


def test_sizes_of_a_combination_are_exact_or_refused():
    """A multiple of the common unit was rounded, to a smaller size than the one that was asked about."""
    with pytest.raises(InputError, match="fewer digits"):
        sb.threat("brightness:1/2+contrast:1/7000000000000000003")
    asked = sb.threat("brightness:1/3+contrast:1/7")
    region = asked.against(nn.Flatten(), torch.rand(1, 1, 2, 2), (0, 1))[1]
    assert [asked.size * Fraction(s) for s in region.scale[0, :2].tolist()] == [Fraction(1, 3), Fraction(1, 7)]


@pytest.mark.parametrize("pixel", [150.0, -0.5])
def test_patches_of_other_pixels_than_those_of_the_image_are_refused(net, x, pixel):
    """Without a clip range contents are in [0, 1]: a misread image of [0, 255] was robust against every patch."""
    images = x.clone()
    images[-1, 0, 0, 0] = pixel
    for name in ("patch:2", "l0:1"):
        with pytest.raises(InputError, match="clip range"):
            sb.threat(name).against(net, images)
        sb.threat(name).against(net, images, (-255, 255))


def test_larger_patches_are_never_tighter_and_records_join_by_image(net, x):
    worst = []
    for size in (1, 2):
        asked = sb.threat(f"patch:{size}")
        network, region = asked.against(net, x, CLIP)
        labels = net(x).argmax(1).repeat_interleave(asked.each(x))
        found = sb.worst_margins(network, region, labels, method="interval")
        worst.append(found.reshape(2, asked.each(x), -1).amax(1))
    assert bool((worst[0] <= worst[1] + 1e-6).all())
    labels[: asked.each(x)] = (labels[0] + 1) % 3  # the first image is misread
    records = sb.verify(network, region, labels, timeout=20)
    joined = records.by_image(asked.each(x), net(x).argmax(1).tolist())
    statuses = [record.verdict.status.value for record in joined]
    assert len(joined) == 2 and statuses[0] == "falsified"
    every = {r.verdict.status.value for r in records if r.index >= asked.each(x)}
    assert (statuses[1] == "robust") == (every == {"robust"})
    assert joined.records[1].index == 1 and joined.records[1].prediction == int(net(x).argmax(1)[1])
    with pytest.raises(InputError, match="none of them breaks it"):
        sb.verify(network, region[20:], labels[20:], cascade="fast").by_image(21)


def test_other_words_lie_in_their_box():
    draw = torch.Generator().manual_seed(4)
    table, others = torch.randn(9, 4, generator=draw), {1: [2, 3], 5: [6], 0: []}
    tokens = torch.tensor([[1, 5, 0], [4, 1, 1]])
    box = substitutions(table, tokens, others)
    for words in itertools.product(*([int(t), *others.get(int(t), [])] for t in tokens.flatten())):
        sentence = table[torch.tensor(words).reshape(2, 3)]
        assert bool(((box.lower <= sentence) & (sentence <= box.upper)).all())
    kept = tokens != 1
    kept &= tokens != 5
    assert torch.equal(box.lower[kept], table[tokens[kept]]) and torch.equal(box.upper[kept], table[tokens[kept]])
    for wrong in ((table[0], tokens, {}), (table, tokens.float(), {}), (table, tokens, {1: [9]})):
        with pytest.raises(InputError, match="embeddings are a table|tokens are numbers|word 9 is not in the table"):
            substitutions(*wrong)


def sampled(image, angle=0.0, scale=1.0, down=0.0, right=0.0):
    """Resample by PyTorch's own function, which knows nothing of hats: zeros outside, corners at -1 and 1."""
    height, width = image.shape[-2:]
    i, j = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    i, j = i - (height - 1) / 2, j - (width - 1) / 2
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    y, z = scale * (cos * i + sin * j) + down, scale * (cos * j - sin * i) + right
    grid = torch.stack([z / ((width - 1) / 2), y / ((height - 1) / 2)], -1)[None].expand(len(image), -1, -1, -1)
    return functional.grid_sample(image.double(), grid, "bilinear", "zeros", align_corners=True).float()


def test_modules_compute_what_grid_sample_does(x):
    steps = torch.linspace(-1, 1, 9).tolist()
    turn, zoom, shift = (
        Rotation(x.shape[1:], 30, CLIP),
        Zoom(x.shape[1:], 0.4, CLIP),
        Translation(x.shape[1:], 2, CLIP),
    )
    for a in steps:
        theta = torch.full((2, 1), a)
        assert torch.allclose(turn(30 * theta, x), sampled(x, angle=30 * a), atol=1e-5)
        assert torch.allclose(zoom(0.4 * theta, x), sampled(x, scale=1 + 0.4 * a), atol=1e-5)
        for b in steps:
            both = torch.tensor([[2 * a, 2 * b]]).expand(2, 2)
            assert torch.allclose(shift(both, x), sampled(x, down=2 * a, right=2 * b), atol=1e-5)


@pytest.mark.parametrize(("name", "size"), [("rotation", "4"), ("translation", "1/3"), ("brightness", "1/10")])
def test_verdicts_agree_with_a_grid_of_parameters(net, x, name, size):
    network, region = sb.threat(f"{name}:{size}").against(net, x, CLIP)
    labels = net(x).argmax(1)
    labels[1] = (labels[1] + 1) % 3  # misread as it is
    records = list(sb.verify(network, region, labels, timeout=20))
    assert records[1].verdict.status.value == "falsified"
    count = network.transform.parameters_count
    line = torch.linspace(-1, 1, 41 if count == 1 else 13) * float(region.eps)
    theta = torch.cartesian_prod(*[line] * count).reshape(-1, count)
    points = torch.cat([theta, x[:1].flatten(1).expand(len(theta), -1)], 1)
    broken = bool((network(points).argmax(1) != labels[0]).any())
    assert records[0].verdict.status.value == ("falsified" if broken else "robust")
    for record in records:
        if record.verdict.witness is not None:  # the whole thing, T and the network, reads it otherwise
            changed = network.image(record.verdict.witness[None])
            assert int(net(changed).argmax(1)) != record.label


def test_radii_per_coordinate_are_those_of_the_box(net, x, tmp_path):
    radii = torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(3)) / 8
    radii[0, 0] = 0
    ball, labels = sb.LinfBall(x, radii, CLIP), net(x).argmax(1)
    exact = [Fraction(v) for v in radii.flatten().tolist()]
    for scaled, times in ((ball, 1), (sb.LinfBall(x, "1/3", CLIP, scale=radii), Fraction(1, 3))):
        outer, inner = scaled.interval(), InnerBox.of(scaled)
        for part in range(2):
            ends = zip(
                x[part].flatten().tolist(), exact, *(end[part].flatten().tolist() for end in
                (outer.lower, outer.upper, inner.lower, inner.upper)), strict=True
            )  # fmt: skip
            for middle, radius, low, high, least, most in ends:
                down = max(Fraction(middle) - times * radius, Fraction(0))
                up = min(Fraction(middle) + times * radius, Fraction(1))
                assert Fraction(low) <= down <= Fraction(least) <= Fraction(most) <= up <= Fraction(high)
                assert high - most < 1e-6 and least - low < 1e-6
    assert torch.equal(ball.interval().upper[:, 0, 0], x[:, 0, 0])
    box = sb.Box(ball.interval().lower, ball.interval().upper)
    assert torch.equal(
        sb.worst_margins(net, ball, labels, method="crown"), sb.worst_margins(net, box, labels, method="crown")
    )
    verdicts = [v.status for v in sb.decide(net, ball, labels)]
    records = sb.verify(net, ball, labels, out=tmp_path)
    assert verdicts == [r.verdict.status for r in records] == [v.status for v in sb.decide(net, box, labels)]
    # one channel alone: (C, 1, 1)
    assert not sb.LinfBall(x, torch.tensor([0.1, 0.0, 0.1]).view(3, 1, 1)).interval().radius[:, 1].any()
    # results of other radii, or of another norm, never mix
    for other in (sb.LinfBall(x, radii / 2, CLIP), sb.LinfBall(x, "1/9", CLIP), sb.L2Ball(x, "1/9", CLIP)):
        with pytest.raises(StoreError, match="spec"):
            sb.verify(net, other, labels, out=tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: sb.threat("rotaton:5"), "did you mean 'rotation'"),
        (lambda x: sb.threat("rotation"), "has no size; give NAME:SIZE"),
        (lambda x: sb.threat("l2:-1"), "negative size"),
        (lambda x: sb.threat("rotation:90"), "larger than rotation:45"),
        (lambda x: sb.threat("patch:1/2"), "is of whole pixels; give patch:1 or more"),
        (lambda x: sb.threat("l0:3/2"), "is of whole pixels; give l0:1 or more"),
        (lambda x: sb.threat("patch:6").against(nn.Flatten(), x), "patch of 6 x 6 pixels does not fit images of 6 x 5"),
        (lambda x: sb.threat("l2:1+blur:1"), "l2:1 cannot be combined there"),
        (lambda x: sb.threat("blur:1+linf:1/9"), "linf:1/9 cannot be combined there"),
        (lambda x: sb.threat("hue:9").against(nn.Flatten(), x[:, :1]), "images with 3 channels; these have 1"),
        (lambda x: sb.threat("gamma:1/9").against(nn.Flatten(), x, (-1, 1)), "pixels between 0 and 1"),
        (lambda x: sb.threat("blur:0.5").against(nn.Flatten(), x.flatten(1)), r"changes images \(B, C, H, W\)"),
        (lambda x: sb.LinfBall(x, torch.tensor([0.1, -0.1, 0]).view(3, 1, 1)), "finite and 0 or more"),
        (lambda x: sb.LinfBall(x, torch.ones(2, 1, 1)), r"do not fit inputs of shape \(2, 3, 6, 5\)"),
        (lambda x: sb.LinfBall(x, torch.ones(1), scale=torch.ones(1)), "eps is a tensor and scale is given"),
        (lambda x: sb.verify(nn.Flatten(), sb.LinfBall(x, torch.ones(x.shape)), torch.zeros(2)), "radii per image ask"),
        (
            lambda x: sb.verify(nn.Flatten(), sb.L2Ball(x, "1/9"), torch.zeros(2), certificates="c"),
            "certificates speak of l-infinity balls",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(x, make, message):
    with pytest.raises((InputError, RegionError), match=message):
        make(x)


def test_parts_of_a_network_that_are_set_apart_stay_so(x):
    """A BatchNorm in eval mode inside a network in training, or the other way round, is the user's own choice."""
    model = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(60, 2)).train()
    model[0].eval()
    for training in (True, False):
        model.training = training
        before = [part.training for part in model.modules()]
        network, _ = sb.threat("blur:1/10").against(model, x, CLIP)
        assert [part.training for part in model.modules()] == before
        assert network.training is network.transform.training is training


def test_reports_say_what_the_verdicts_are_about(net, x, tmp_path):
    """25 % proved at l2 distance 0.1, or by a change of 0.1, is not 25 % proved at eps 0.1."""
    labels = net(x).argmax(1)
    changed = sb.threat("contrast:1/100").against(net, x, CLIP)
    asked = {
        "": (net, sb.LinfBall(x, "1/100", CLIP)),
        "l2 balls": (net, sb.L2Ball(x, "1/100", CLIP)),
        "l1 balls": (net, sb.L1Ball(x, "1/100", CLIP)),
        "radii per coordinate": changed,
    }
    for words, (network, region) in asked.items():
        path = tmp_path / words.replace(" ", "-")
        sb.verify(network, region, labels, "fast", out=path)
        run = read_run(path)
        title = headline([run]).html
        assert run.regions == words and (f"({words})" in title and words in run.name if words else "(" not in title)
        if words:
            for command, message in (("results", f"about {words}"), ("explore", f"verdicts about {words}")):
                output = " ".join(CliRunner().invoke(build_app(), [command, str(path)]).output.split())
                assert message in output, output


def test_radius_shows_the_size_of_each_part_of_a_combination(capsys):
    """It showed their common unit alone, from which nobody can read how far a picture may be turned."""
    asked = sb.threat("linf:1/255+rotation:5deg")
    found = [ImageRadius(0, 3, asked.size / 2, asked.size), ImageRadius(1, 4, None, Fraction(0))]
    show(found, asked, Format.JSON)
    first, second = json.loads(capsys.readouterr().out)
    assert (first["proved_threat"], first["broken_threat"]) == ("linf:1/510+rotation:5/2", "linf:1/255+rotation:5")
    assert first["proved_exactly"] == "1/510" and second["proved_threat"] is None
    assert sb.threat(second["broken_threat"]).against(nn.Flatten(), torch.rand(1, 1, 8, 8), CLIP)[1].eps == 0
    show(found, asked, Format.CSV)
    lines = capsys.readouterr().out.split()
    assert any(line.startswith("0,3,linf:0.00196078+rotation:2.5deg,linf:0.00392157+rotation:5deg,") for line in lines)
    assert "are proved up to linf:0.00196078+rotation:2.5deg or more" in conclusion(found, asked)
    show(found, sb.threat("rotation:5deg"), Format.CSV)
    assert "0,3,0.001961,0.003922,0," in capsys.readouterr().out, "of one change its size is enough"


def test_a_combination_at_another_size_is_that_of_its_region(net, x):
    whole = sb.threat("linf:1/10+rotation:5deg+brightness:1/15")
    half = whole.at(whole.size / 2)
    assert str(half) == "linf:1/20+rotation:5/2+brightness:1/30" and half == sb.threat(str(half))
    regions = [each.against(net, x, CLIP)[1] for each in (whole, half)]
    assert regions[1].eps * 2 == regions[0].eps and torch.equal(regions[0].scale, regions[1].scale)
    assert str(sb.threat("rotation:5deg").at(Fraction(1, 2))) == "rotation:1/2"
    assert whole.at(Fraction(0)).rounded == "linf:0+rotation:0deg+brightness:0"


def test_a_changed_network_is_named_in_full(net, x):
    network, region = sb.threat("translation:2").against(net, x, CLIP)
    assert isinstance(network, Changed) and network.transform.reach == 2
    assert region.widest == 2 and int((region.scale > 0).sum()) == 2


def test_several_pixels_anywhere_are_a_ball() -> None:
    images = torch.rand(2, 3, 5, 5)
    asked = sb.threat("l0:2")
    net = nn.Flatten()
    network, region = asked.against(net, images, clip=(0, 1))
    assert network is net and isinstance(region, sb.L0Ball) and region.eps == 2
    assert asked.each(images) == 1 and asked.in_pixels
