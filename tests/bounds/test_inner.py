"""Optimised bounds inside a network, and the parts of a reduced network that they are computed over."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.reduced import reduction
from surebound.bounds.reduced.inner import optimised_bounds
from surebound.bounds.reduced.network import Reduced, Rows
from surebound.bounds.reduced.parts import parts, tiles
from surebound.bounds.reduced.passes import bounds_of_rows
from surebound.bounds.reduced.reduction import reduce_relaxed
from surebound.bounds.reduced.swing import Swing
from surebound.bounds.reduced.window_rows import rows_by_windows
from surebound.graph import program_of
from surebound.interval import Interval, intersect
from surebound.numerics import Soundness

SWING = Swing()


def dense() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)
    )


def images() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 2), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip


def make(build: str, x: Tensor) -> nn.Sequential:
    torch.manual_seed(4)
    net = {"dense": dense, "images": images}[build]().eval()
    net(x)
    return net.requires_grad_(False)


SHAPES = {"dense": (1, 3), "images": (1, 1, 12, 12)}


def reductions(build: str, refine: object = None) -> tuple[nn.Sequential, Interval, Reduced, Relaxed]:
    x = torch.rand(SHAPES[build], generator=torch.Generator().manual_seed(0))
    net, box = make(build, x), sb.LinfBall(x, "1/4").interval()
    found = reduce_relaxed(program_of(net, x), box, torch.eye(3), Soundness.DEPLOYED, refine=refine)  # type: ignore[arg-type]
    return net, box, *found


def optimise(source: str, place: Tensor, reduced: Reduced) -> Interval:
    return optimised_bounds(reduced, SWING, 1 << 20)


def inside(net: nn.Sequential, box: Interval, relaxed: Relaxed, count: int = 300) -> None:
    """Check bounds of all values on executions at random points and corners."""
    t = torch.rand(count, *box.shape[1:], generator=torch.Generator().manual_seed(1))
    t[: count // 2] = t[: count // 2].round()
    h = box.lower + t * (box.upper - box.lower)
    names = [node.name for node in relaxed.program.graph.nodes if node.varies]
    for name, layer in zip(names, net, strict=True):
        h = layer(h)
        assert bool(relaxed.bounds[name].contains(h).all()), name


@pytest.mark.parametrize("build", SHAPES)
def test_optimised_bounds_hold_and_are_never_looser(build: str) -> None:
    net, box, _, relaxed = reductions(build, optimise)
    crown = relax(relaxed.program, box, Soundness.DEPLOYED, own=True)
    inside(net, box, relaxed)
    tighter = 0
    for name in crown.activations:
        mine, theirs = relaxed.bounds[crown.source(name)], crown.bounds[crown.source(name)]
        slack = 1e-5 * (1 + theirs.magnitude)  # the same bounds through other sums
        assert bool((mine.lower >= theirs.lower - slack).all())
        assert bool((mine.upper <= theirs.upper + slack).all())
        tighter += int((mine.upper < theirs.upper - 100 * slack).sum())
    assert tighter >= 5


def test_the_exact_range_of_a_small_network_is_inside() -> None:
    """The maximum over a box of a ReLU network is the largest of its linear pieces' maxima."""
    net, box, reduced, _ = reductions("dense", optimise)
    found = optimised_bounds(reduced, SWING, 1 << 20)
    grid = torch.linspace(0, 1, 21)
    t = torch.tensor(list(itertools.product(grid.tolist(), repeat=3)))
    z = net(box.lower + t * (box.upper - box.lower))
    assert bool((z <= found.upper).all())
    assert bool((z >= found.lower).all())
    crown = bounds_of_rows(reductions("dense")[2])
    true = z.amax(0) - z.amin(0)
    mine, plain = (each.upper - each.lower - true for each in (intersect(crown, found), crown))
    assert float(mine.sum()) < 0.9 * float(plain.sum()), "a good part of what CROWN loses is won back"


def test_memory_changes_no_bound() -> None:
    reduced = reductions("dense")[2]
    many, few = optimised_bounds(reduced, SWING, 1 << 20), optimised_bounds(reduced, SWING, 1)
    torch.testing.assert_close(many.upper, few.upper, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(many.lower, few.lower, rtol=1e-5, atol=1e-5)


def test_parts_have_the_bounds_of_the_whole() -> None:
    seen = []

    def compare(source: str, place: Tensor, part: Reduced) -> Interval:
        seen.append((len(place), len(part.lower), part.unstable))
        return bounds_of_rows(part)

    _, box, reduced, relaxed = reductions("images", compare)
    assert len(seen) > 10, "tiles of two convolutions"
    assert any(inputs < box.lower.numel() / 4 for _, inputs, _ in seen)
    plain = relax(relaxed.program, box, Soundness.DEPLOYED, own=True)
    for name in plain.activations:
        mine, theirs = relaxed.bounds[plain.source(name)], plain.bounds[plain.source(name)]
        torch.testing.assert_close(mine.lower, theirs.lower, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.upper, theirs.upper, rtol=1e-4, atol=1e-5)
    groups = [torch.tensor([2, 0]), torch.tensor([1])]
    whole = bounds_of_rows(reduced)
    for index, part in parts(reduced, groups):
        found = bounds_of_rows(part)
        torch.testing.assert_close(found.upper, whole.upper[index], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.lower, whole.lower[index], rtol=1e-6, atol=1e-6)


class Detector(nn.Module):
    """Two paths and outputs that each see a corner of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.side = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 2, 1, 2)
        self.down, self.last = nn.Conv2d(3, 2, 3, 2, 1), nn.Conv2d(2, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.last((self.down(h) + self.side(h)).relu()).flatten(1)


@pytest.mark.parametrize("wide", [False, True])
def test_rows_by_windows_are_those_of_whole_images(monkeypatch: pytest.MonkeyPatch, wide: bool) -> None:
    torch.manual_seed(2)
    x = torch.rand(1, 1, 12, 12)
    program = program_of(Detector().eval().requires_grad_(False), x)
    box, c = sb.LinfBall(x, "1/4").interval(), torch.eye(25)
    used: list[Rows | None] = []

    def watched(*args: Any) -> Rows | None:
        used.append(rows_by_windows(*args))
        return used[-1]

    monkeypatch.setattr(reduction, "rows_by_windows", watched)
    mine, _ = reduce_relaxed(program, box, c, Soundness.DEPLOYED, wide=wide)
    assert any(used), "no window was used"
    monkeypatch.setattr(reduction, "rows_by_windows", lambda *_: None)
    plain, _ = reduce_relaxed(program, box, c, Soundness.DEPLOYED, wide=wide)
    assert [len(layer) for layer in mine.layers] == [len(layer) for layer in plain.layers]
    for one, other in zip(mine.layers, plain.layers, strict=True):
        torch.testing.assert_close(one.rows.up, other.rows.up, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.rows.low, other.rows.low, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.rows.up_offset, other.rows.up_offset, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.rows.low_offset, other.rows.low_offset, rtol=1e-5, atol=1e-6)
    # One output: fewer unstable units, the same bounds.
    some, _ = reduce_relaxed(program, box, c[:1], Soundness.DEPLOYED, wide=wide)
    assert some.unstable < mine.unstable / 2
    torch.testing.assert_close(bounds_of_rows(some).upper, bounds_of_rows(mine).upper[:1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bounds_of_rows(some).lower, bounds_of_rows(mine).lower[:1], rtol=1e-5, atol=1e-6)


def test_tiles_cover_every_entry_once() -> None:
    place = torch.arange(2 * 9 * 7)[::2]
    found = tiles(place, torch.Size((1, 2, 9, 7)))
    assert torch.cat(found).sort().values.tolist() == list(range(len(place)))
    assert len(found) == 16
    assert [t.tolist() for t in tiles(torch.tensor([5, 7]), torch.Size((1, 10)))] == [[0, 1]]
    assert [t.tolist() for t in tiles(torch.tensor([], dtype=torch.int64), torch.Size((1, 2, 3, 3)))] == [[]]
