"""Few pixels that hold anything: brute force over the choices of pixels, sampled and attacked points, membership."""

from __future__ import annotations

from itertools import combinations, pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.attack.methods import PGD
from surebound.errors import RegionError

REGIONS = [(sb.L0Ball, 1), (sb.L0Ball, 2), (sb.L0Ball, 3), (sb.Patch, 1), (sb.Patch, 2)]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 8), nn.ReLU(), nn.Linear(8, 3))
    return nn.Sequential(*layers).requires_grad_(False)


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.rand(3, 2, 4, 4, generator=torch.Generator().manual_seed(1))


def choices(make: Any, size: int) -> list[Tensor]:
    """Return the mask (4, 4) of every largest choice of pixels."""
    places = list(product(range(4), range(4)))
    if make is sb.L0Ball:
        sets = list(combinations(places, size))
    else:
        tops = product(range(5 - size), repeat=2)
        sets = [tuple((i + a, j + b) for a, b in product(range(size), repeat=2)) for i, j in tops]
    masks = []
    for chosen in sets:
        mask = torch.zeros(4, 4)
        for i, j in chosen:
            mask[i, j] = 1
        masks.append(mask)
    return masks


def margins(net: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    z: Tensor = net(x)
    return z - z.gather(1, labels[:, None])


@pytest.mark.parametrize(("make", "size"), REGIONS)
@pytest.mark.parametrize("method", ["interval", "crown-ibp", "crown", "alpha-crown"])
def test_points_never_leave_the_bounds(net: nn.Module, x: Tensor, make: Any, size: int, method: str) -> None:
    labels = net(x).argmax(1)
    region = make(x, size)
    upper = sb.worst_margins(net, region, labels, method=method)
    draw = torch.Generator().manual_seed(2)
    for mask in choices(make, size)[:150]:
        content = torch.rand(x.shape, generator=draw)
        content = content.round() if float(content[0, 0, 0, 0]) < 0.5 else content
        point = torch.where(mask.bool(), content, x)
        assert bool(region.contains(point).all())
        assert bool((margins(net, point, labels) <= upper).all())
    broken = sb.attack(net, region, labels, PGD(steps=20, restarts=2))
    assert bool(region.contains(broken.adversarial).all())
    assert bool((margins(net, broken.adversarial, labels) <= upper).all())


@pytest.mark.parametrize(("make", "size"), REGIONS)
def test_of_a_linear_network_the_bound_is_the_maximum_and_the_attack_finds_it(x: Tensor, make: Any, size: int) -> None:
    """By brute force over all choices of pixels, in which every entry goes to the end that suits it."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(32, 2)).double().requires_grad_(False)
    row = (net[1].weight[1] - net[1].weight[0]).reshape(2, 4, 4)
    labels = torch.zeros(3, dtype=torch.long)
    x = x.double()
    here = margins(net, x, labels)[:, 1]
    ends = torch.where(row > 0, 1.0, 0.0).double()
    best = torch.stack(
        [margins(net, torch.where(mask.bool(), ends, x), labels)[:, 1] for mask in choices(make, size)]
    ).amax(0)
    region = make(x, size)
    found = sb.worst_margins(net, region, labels, method="crown")[:, 1]
    assert bool((found >= best).all()) and torch.allclose(found, best, atol=1e-9) and bool((best > here).all())
    reached = margins(net, sb.attack(net, region, labels, PGD(steps=40, restarts=1)).adversarial, labels)[:, 1]
    assert torch.allclose(reached, best, atol=1e-6) or bool((reached > 0).all()), "broken ones end early"


def test_more_pixels_have_wider_bounds_and_none_is_the_image(net: nn.Module, x: Tensor) -> None:
    labels = net(x).argmax(1)
    found = [sb.worst_margins(net, sb.L0Ball(x, k), labels, method="crown") for k in (0, 1, 2, 5, 16, 20)]
    assert torch.allclose(found[0], margins(net, x, labels), atol=1e-5)
    for small, large in pairwise(found):
        assert bool((small <= large + 1e-5).all())
    every = sb.worst_margins(net, sb.LinfBall(x, 1, (0, 1)), labels, method="crown")
    assert bool((found[-1] <= every + 1e-5).all()) and bool((found[1] < every - 1e-2).any())
    patches = [sb.worst_margins(net, sb.Patch(x, k), labels, method="crown") for k in (1, 2, 3, 4)]
    assert torch.allclose(patches[0], found[1], atol=1e-5), "a patch of one pixel is any one pixel"
    for small, large in pairwise(patches):
        assert bool((small <= large + 1e-5).all())


@pytest.mark.parametrize("make", [sb.L0Ball, sb.Patch])
def test_of_no_pixels_an_attack_keeps_the_image(net: nn.Module, x: Tensor, make: Any) -> None:
    found = sb.attack(net, make(x, 0), net(x).argmax(1), PGD(steps=2, restarts=1))
    assert torch.equal(found.adversarial, x) and not found.success.any()


def test_membership() -> None:
    x = torch.full((1, 3, 4, 4), 0.5)
    diagonal = x.clone()
    diagonal[:, 1, [0, 2], [0, 2]] = torch.tensor([0.0, 1.0])
    assert sb.L0Ball(x, 2).contains(diagonal).item() and not sb.L0Ball(x, 1).contains(diagonal).item()
    assert sb.Patch(x, 3).contains(diagonal).item() and not sb.Patch(x, 2).contains(diagonal).item()
    line = x.clone()
    line[:, 0, 1, [0, 3]] = 0.0  # one row, four columns
    assert not sb.Patch(x, 3).contains(line).item() and not sb.Patch(x, 3).contains(line.mT.contiguous()).item()
    assert sb.Patch(x, 4).contains(line).item()
    for wrong in (1.5, float("nan"), float("inf")):
        diagonal[:, 1, 0, 0] = wrong
        assert not sb.L0Ball(x, 16).contains(diagonal).item()
    flat = torch.zeros(1, 6)
    assert not sb.L0Ball(flat, 1).contains(torch.eye(6)[:2].sum(0)[None]).item(), "every entry is a pixel"
    assert sb.L0Ball(flat, 0).contains(flat).item()


def test_verification_proves_and_breaks(x: Tensor) -> None:
    torch.manual_seed(1)
    layers = (nn.Flatten(), nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, 3))
    net = nn.Sequential(*layers).requires_grad_(False)
    net[1].bias.zero_()
    net[3].bias.sub_(net(x).mean(0))
    labels = net(x).argmax(1)
    results = sb.verify(net, [sb.L0Ball(x, k) for k in (0, 1, 16)], labels)
    assert [record.verdict.status.value for record in results.at(0)] == ["robust"] * 3
    for record in results:
        if record.verdict.witness is not None:
            assert sb.L0Ball(x[record.index][None], record.eps).contains(record.verdict.witness[None]).item()
            assert int(net(record.verdict.witness[None]).argmax(1)) != record.label
    assert any(record.verdict.witness is not None for record in results.at(16))


def test_what_is_no_region_of_pixels() -> None:
    x = torch.zeros(1, 1, 4, 4)
    with pytest.raises(RegionError, match="needs the range of valid pixels"):
        sb.L0Ball(x, 1, None)
    with pytest.raises(RegionError, match="counts whole pixels"):
        sb.L0Ball(x, "1/2")
    with pytest.raises(RegionError, match="does not fit images of 4 x 4"):
        sb.Patch(x, 5)
    with pytest.raises(RegionError, match="takes images"):
        sb.Patch(torch.zeros(1, 4), 1)
    with pytest.raises(RegionError, match="outside clip"):
        sb.L0Ball(x + 2, 1)
    with pytest.raises(RegionError, match="decide takes boxes"):
        sb.decide(nn.Flatten(), sb.L0Ball(x, 1), torch.zeros(1).long())
