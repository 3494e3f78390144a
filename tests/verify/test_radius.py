"""Radii by bisection: against networks whose radius is known exactly, and after Ctrl-C."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from surebound.cli import build_app
from surebound.errors import InputError, StoreError, VerificationError
from surebound.norm_ball import L2Ball
from surebound.pixel_ball import L0Ball, Patch
from surebound.region import LinfBall
from surebound.search.cascade import Cascade
from surebound.search.record import Record
from surebound.search.stages import Clean, IntervalBounds
from surebound.verdict import Status, Verdict
from surebound.verify import Store, radius
from surebound.verify.radius import ImageRadius, RadiusSearch, median, staircase, survivors
from tests.verify.nets import steep

IMAGES = torch.tensor([[0.9, 0.1], [0.5, 0.45], [0.2, 0.8], [0.4, 0.6], [1.0, 0.0]])
LABELS = torch.tensor([0, 0, 1, 0, 0])
STEP = Fraction(1, 64)


def search(most: str = "1/2", cascade: Any = "fast", **options: Any) -> RadiusSearch:
    return RadiusSearch(steep(), LinfBall(IMAGES, most, clip=(0, 1)), LABELS, cascade, step=STEP, **options)


def truth(index: int) -> Fraction:
    """Where |x0 - x1| / 2 is reached, exactly; below 0 for an image that is misread."""
    a, b = (Fraction(float(value)) for value in IMAGES[index])
    return (a - b) / 2 if LABELS[index] == 0 else (b - a) / 2


def test_radii_are_those_of_a_known_network() -> None:
    for each in search().run():
        exact = truth(each.index)
        if exact < 0:
            assert each.misread and each.proved is None
            continue
        assert each.proved is not None and each.proved <= exact and exact - each.proved <= 2 * STEP
        assert each.proved.denominator in (1, 2, 4, 8, 16, 32, 64), "radii are exact"
        if each.broken is not None:
            assert each.broken >= exact and each.broken - exact <= 2 * STEP


@pytest.mark.parametrize(("scale", "times"), [((1.0, 0.0), 2.0), ((2.0, 2.0), 0.5), (None, math.sqrt(2))])
def test_radii_of_other_regions_are_those_of_a_known_network(scale: tuple[float, float] | None, times: float) -> None:
    """One coordinate moves, both move twice as far, or both within a circle: |x0 - x1| / 2 times a known number."""
    images, labels = IMAGES[:3], LABELS[:3]
    region: Any = L2Ball(images, "1/2")
    if scale is not None:
        region = LinfBall(images, "1/2", None, torch.tensor([scale], dtype=torch.float64))
    for each in RadiusSearch(steep(), region, labels, "default", step=STEP).run():
        exact = times * float(truth(each.index))
        assert each.proved is not None and min(exact, 0.5) - 2 * STEP <= float(each.proved) <= exact + 1e-9
        assert each.broken is None or exact - 1e-9 <= float(each.broken) <= exact + 2 * STEP


def test_few_questions_settle_all_radii(tmp_path: Path) -> None:
    """Bisection: about log2 of the number of radii, not as many as there are."""
    search(out=tmp_path).run()
    with Store.read(tmp_path / "results.db") as store:
        asked = [sum(record.index == i for record in store.records()) for i in range(len(IMAGES))]
    assert max(asked) <= 2 * math.ceil(math.log2(33)) and sum(asked) < 33 * len(IMAGES) / 3


def test_what_is_known_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = search(out=tmp_path).run()

    def never(*_: object) -> None:
        raise AssertionError("nothing is left to ask")

    monkeypatch.setattr(radius, "executor_for", never)
    assert search(out=tmp_path).run() == found


def test_a_proof_at_any_radius_counts_at_all_smaller_ones(tmp_path: Path) -> None:
    """Records of another grid, as `verify` leaves them, are reused."""
    coarse = RadiusSearch(
        steep(), LinfBall(IMAGES, "3/10", clip=(0, 1)), LABELS, "fast", step=Fraction(1, 10), out=tmp_path
    )
    coarse.run()
    with Store.read(tmp_path / "results.db") as store:
        before = sum(record.index == 0 for record in store.records())
    found = search(out=tmp_path).run()
    assert found[0].proved is not None and found[0].proved >= Fraction(3, 10)
    with Store.read(tmp_path / "results.db") as store:
        later = [record.eps for record in store.records() if record.index == 0]
    assert len(later) > before and not [eps for eps in later if eps < Fraction(3, 10) and eps % STEP == 0 and eps > 0]


def test_ctrl_c_loses_nothing(tmp_path: Path) -> None:
    calls = iter(range(100))

    def interrupt(done: int, total: int) -> None:
        if next(calls) == 3:
            raise KeyboardInterrupt

    stopped = search(out=tmp_path, progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    partial = stopped.found
    assert any(each.proved is not None or each.broken is not None for each in partial)
    with Store.read(tmp_path / "results.db") as store:
        kept = len(list(store.records()))
    assert kept > 0
    whole = search(out=tmp_path).run()
    assert whole == search().run()
    for before, after in zip(partial, whole, strict=True):
        assert (before.proved or 0) <= (after.proved or 0), "what was known still is"


def test_what_is_left_open_lies_between(tmp_path: Path) -> None:
    """A cascade without an attack breaks nothing; intervals prove less than is true."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)).requires_grad_(False)
    labels = net(IMAGES).argmax(1)
    bounds = Cascade("bounds", (Clean(), IntervalBounds()))
    region = LinfBall(IMAGES, "1/2", clip=(0, 1))
    weak = RadiusSearch(net, region, labels, bounds, step=STEP, out=tmp_path / "weak").run()
    strong = RadiusSearch(net, region, labels, "fast", step=STEP).run()
    for less, more in zip(weak, strong, strict=True):
        assert less.broken is None and (less.undecided or less.proved == Fraction(1, 2))
        assert (less.proved or 0) <= (more.proved or 0)
        assert more.broken is None or more.proved is None or more.proved < more.broken


def test_contradictions_are_loud() -> None:
    running = search()
    running._learn(Record(0, 0, 0, Fraction(1, 4), Verdict(Status.ROBUST, "interval", -1.0)))
    witness = Verdict(Status.FALSIFIED, "pgd", 1.0, IMAGES[0] - 0.125)
    with pytest.raises(VerificationError, match="image 0 is proved robust at 1/4 and broken at"):
        running._learn(Record(0, 0, 1, Fraction(1, 2), witness))


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="step 1/64 must be above 0 and at most the largest radius, 1/100"):
        search("1/100")
    search(out=tmp_path).run()
    other = RadiusSearch(steep(), LinfBall(IMAGES.flip(0), "1/2", clip=(0, 1)), LABELS, "fast", step=STEP, out=tmp_path)
    with pytest.raises(StoreError, match="holds a result for another example"):
        other.run()


def test_shares_by_radius() -> None:
    found = [ImageRadius(0, 0, Fraction(1, 4), Fraction(1, 2)), ImageRadius(1, 0, None, Fraction(0))]
    assert survivors(found, 0) == (0.5, 0.5) and survivors(found, Fraction(1, 2)) == (0.0, 0.0)
    assert survivors(found, 0.25) == (0.5, 0.5) and survivors(found, 0.3) == (0.0, 0.5)
    radii, proved, alive = staircase([*found, ImageRadius(2, 0, Fraction(1, 2), None)])
    assert radii == [0, Fraction(1, 4), Fraction(1, 2)]
    assert proved == pytest.approx([2 / 3, 1 / 3]), "beyond 1/4 the first image is not proved"
    assert alive == pytest.approx([2 / 3, 2 / 3]), "up to 1/2 its counterexample is not reached"
    assert staircase([ImageRadius(1, 0, None, Fraction(0))]) == ([0, 1], [0.0], [0.0]), "nothing but a misread image"
    assert median([Fraction(3), Fraction(1), Fraction(2)]) == 2 and median([]) is None


def test_the_command(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=IMAGES.numpy(), labels=LABELS.numpy())
    words = [
        "radius", "tests.verify.nets:steep", "--data", tmp_path / "data.npz", "--step", "1/32", "--cascade", "fast",
        "--jobs", 1, "--out", tmp_path / "radii", "--figures", tmp_path / "figures",
    ]  # fmt: skip
    shown = CliRunner().invoke(build_app(), [str(word) for word in words])
    assert shown.exit_code == 0, shown.output
    assert "proved up to" in shown.stdout and "5 images, 1 misread as they are" in shown.stdout
    assert (tmp_path / "figures" / "radius.pdf").read_bytes().startswith(b"%PDF")
    again = CliRunner().invoke(build_app(), [str(word) for word in (*words, "--format", "json", "--quiet")])
    lines = json.loads(again.stdout)
    assert again.stderr == "" and lines[0]["proved_exactly"] == "3/8" and lines[3]["broken"] == 0


@pytest.mark.parametrize("kind", [L0Ball, Patch])
def test_pixels_that_a_linear_network_bears(kind: type[Any]) -> None:
    """Against all choices of pixels, each entry at the end that suits it: the largest size without a counterexample."""
    draw = torch.Generator().manual_seed(5)
    images = torch.rand(6, 2, 3, 3, generator=draw)
    net = nn.Sequential(nn.Flatten(), nn.Linear(18, 2)).requires_grad_(False)
    row = torch.randn(18, generator=draw).sign() * (torch.rand(18, generator=draw) + 0.5)
    net[1].weight.copy_(torch.stack([row, -row]))
    net[1].bias.copy_(torch.tensor([3.0, 0.0]))
    labels = net(images).argmax(1)
    places = list(product(range(3), range(3)))
    for each in RadiusSearch(net, kind(images, 3), labels, "default", step=Fraction(1)).run():
        x, sign = images[each.index].double(), 1.0 if int(labels[each.index]) else -1.0
        way = sign * 2 * row.double().reshape(2, 3, 3)  # the margin of the other class rises this way
        gain = torch.where(way > 0, way * (1 - x), -way * x).sum(0)
        lead = float(sign * (-2 * (row.double() @ x.flatten()) - 3.0))
        most = [0.0]
        for size in (1, 2, 3):
            if kind is L0Ball:
                choices = [list(chosen) for chosen in combinations(places, size)]
            else:
                tops = product(range(4 - size), repeat=2)
                choices = [[(i + a, j + b) for a, b in product(range(size), repeat=2)] for i, j in tops]
            most.append(max(sum(float(gain[p]) for p in chosen) for chosen in choices))
        assert all(abs(lead - total) > 1e-3 for total in most), "no tie"
        proved = max(size for size, total in enumerate(most) if total < lead)
        assert each.proved == proved and each.broken == (None if proved == 3 else proved + 1) and not each.undecided
    with pytest.raises(InputError, match="no number of pixels"):
        RadiusSearch(net, kind(images, 3), labels, "default", step=Fraction(1, 2))
