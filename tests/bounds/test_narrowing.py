"""A reduced network over parts of its box: bounds hold there, folded rows hold exactly, parts are CROWN's own."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear.backward import Opposite
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.reduced.narrowing import folded, narrowed
from surebound.bounds.reduced.network import Reduced, Rows
from surebound.bounds.reduced.passes import Passes, bounds_of_rows
from surebound.bounds.reduced.reduction import reduce_network
from surebound.bounds.reduced.swing import Swing
from surebound.errors import InputError
from surebound.graph import Program, program_of
from surebound.interval import Interval
from surebound.numerics import Soundness


def dense(activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 12), activation, nn.Linear(12, 12), activation, nn.Linear(12, 8), activation, nn.Linear(8, 3)
    )


NETS = {"relu": nn.ReLU(), "leaky": nn.LeakyReLU(0.2)}
MODES = [Soundness.REAL, Soundness.DEPLOYED]


@lru_cache
def traced(name: str) -> tuple[nn.Sequential, Program, Interval]:
    torch.manual_seed(3)
    net, x = dense(NETS[name]).eval().requires_grad_(False), torch.full((1, 4), 0.5)
    for layer in net[::2]:
        layer.weight.mul_(1.7)
    return net, program_of(net, x), sb.LinfBall(x, "1/2").interval()


def reduction(name: str, mode: Soundness, wide: bool = False) -> tuple[nn.Sequential, Program, Reduced]:
    net, program, box = traced(name)
    return net, program, reduce_network(program, box, torch.eye(3), mode, wide=wide)


def halves(reduced: Reduced, axis: int = 1) -> list[tuple[Tensor, Tensor]]:
    at, middle = torch.tensor([axis]), float(reduced.lower[axis] / 2 + reduced.upper[axis] / 2)
    low, high = reduced.lower.index_fill(0, at, middle), reduced.upper.index_fill(0, at, middle)
    return [(reduced.lower, high), (low, reduced.upper)]


def points(lower: Tensor, upper: Tensor, count: int = 2000) -> Tensor:
    t = torch.rand(count, len(lower), generator=torch.Generator().manual_seed(1))
    t[: count // 2] = t[: count // 2].round()
    return lower + t * (upper - lower)


@pytest.mark.parametrize("swing", [None, Swing(steps=4)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NETS)
def test_bounds_over_a_part_hold_there_and_are_no_looser(name: str, mode: Soundness, swing: Swing | None) -> None:
    net, _, reduced = reduction(name, mode)
    whole = bounds_of_rows(reduced)
    for lower, upper in halves(reduced):
        part = narrowed(reduced, lower, upper, swing)
        small = folded(part)
        assert small.unstable < reduced.unstable
        z = net(points(lower, upper))
        for each in (part, small):
            found = bounds_of_rows(each)
            assert bool((z <= found.upper).all()) and bool((z >= found.lower).all())
            # Not each of them: adaptive slopes may turn over.
            assert float((found.upper - found.lower).sum()) < float((whole.upper - whole.lower).sum())
        for layer, old in zip(part.layers, reduced.layers, strict=True):
            assert bool((layer.lower >= old.lower).all()) and bool((layer.upper <= old.upper).all())
        _, inside = Passes(part, torch.float64).values(points(lower, upper).double())
        low, high = (torch.cat([getattr(layer, end) for layer in part.layers]) for end in ("lower", "upper"))
        assert bool((inside >= low - 1e-5).all()) and bool((inside <= high + 1e-5).all())


@pytest.mark.parametrize("mode", MODES)
def test_bounds_over_a_part_are_about_crowns_own(mode: Soundness) -> None:
    """But for bounds of the whole that happen to be tighter, and what these do to slopes."""
    _, program, reduced = reduction("relu", mode)
    same = narrowed(reduced, reduced.lower, reduced.upper)
    for layer, old in zip(same.layers, reduced.layers, strict=True):
        torch.testing.assert_close(layer.lower, old.lower, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(layer.upper, old.upper, rtol=1e-4, atol=1e-4)
    for lower, upper in halves(reduced):
        crown = relax(program, Interval(lower.unsqueeze(0), upper.unsqueeze(0)), mode, own=True)
        for layer in narrowed(reduced, lower, upper).layers:
            theirs = crown.bounds[crown.source(layer.name)]
            width = (theirs.upper - theirs.lower).flatten()[layer.place]
            assert float((layer.upper - layer.lower).sum()) < 1.02 * float(width.sum())


@pytest.mark.parametrize("name", NETS)
def test_lines_over_a_part_hold_in_exact_arithmetic(name: str) -> None:
    _, _, reduced = reduction(name, Soundness.DEPLOYED)
    part = narrowed(reduced, *halves(reduced)[0])
    for layer in part.layers:
        left, right = (Fraction(side) for side in layer.sides)
        for i in range(len(layer)):
            chord, top = Fraction(float(layer.chord[i])), Fraction(float(layer.top[i]))
            for x in (Fraction(float(layer.lower[i])), Fraction(float(layer.upper[i]))):
                assert chord * x + top >= max(left * x, right * x) - Fraction(float(layer.bottom[i]))


def exact_rows(rows: Rows, v: list[Fraction]) -> list[tuple[Fraction, Fraction]]:
    found = []
    for up, low_offset, up_offset in zip(rows.up, rows.low_offset, rows.up_offset, strict=True):
        value = sum((Fraction(float(a)) * x for a, x in zip(up, v, strict=False)), Fraction(0))
        found.append((value + Fraction(float(low_offset)), value + Fraction(float(up_offset))))
    return found


@pytest.mark.parametrize("name", NETS)
def test_folded_rows_cover_the_rows_that_they_replace_in_exact_arithmetic(name: str) -> None:
    """Any value that old rows allow is allowed by the folded ones: ends of old rows, ReLUs as they are."""
    _, _, reduced = reduction(name, Soundness.REAL, wide=True)
    lower, upper = halves(reduced)[1]
    part = narrowed(reduced, lower, upper)
    small = folded(part)
    assert small.unstable < part.unstable
    for number, x in enumerate(points(lower, upper, 12)):
        old = new = [Fraction(float(each)) for each in x]
        kept = {(layer.name, int(p)) for layer in small.layers for p in layer.place}
        checked = iter(small.layers)
        for layer in part.layers:
            left, right = (Fraction(side) for side in layer.sides)
            values = [ends[number % 2] for ends in exact_rows(layer.rows, old)]
            outputs = [max(left * z, right * z) for z in values]
            places = [(layer.name, int(p)) in kept for p in layer.place]
            if any(places):
                mine = exact_rows(next(checked).rows, new)
                theirs = [z for z, keep in zip(values, places, strict=True) if keep]
                assert all(low <= z <= high for (low, high), z in zip(mine, theirs, strict=True))
            old = old + outputs
            new = new + [y for y, keep in zip(outputs, places, strict=True) if keep]
        ends = zip(exact_rows(part.outputs, old), exact_rows(small.outputs, new), strict=True)
        assert all(mine[0] <= theirs[0] and theirs[1] <= mine[1] for theirs, mine in ends)


def test_what_is_not_affine_is_not_folded() -> None:
    _, _, reduced = reduction("relu", Soundness.REAL)
    twisted = replace(reduced, outputs=replace(reduced.outputs, low=reduced.outputs.up.clone()))
    assert folded(twisted) is twisted


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wide", [False, True])
def test_one_pass_gives_the_rows_and_minus_the_rows(
    monkeypatch: pytest.MonkeyPatch, mode: Soundness, wide: bool
) -> None:
    for name in NETS:
        _, _, once = reduction(name, mode, wide)
        with monkeypatch.context() as patch:
            patch.setattr(Opposite, "add", lambda self, *_: setattr(self, "affine", False))
            _, _, twice = reduction(name, mode, wide)
        pairs = [
            (once.outputs, twice.outputs),
            *((a.rows, b.rows) for a, b in zip(once.layers, twice.layers, strict=True)),
        ]
        for one, two in pairs:
            assert torch.equal(one.up, two.up) and one.low is one.up
            assert bool((one.up_offset >= one.low_offset).all())
            torch.testing.assert_close(one.up_offset, two.up_offset, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(one.low_offset, two.low_offset, rtol=1e-9, atol=1e-12)


def test_steps_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="steps must be >= 0"):
        Swing(steps=-1)
    with pytest.raises(InputError, match="decay and fresh"):
        Swing(fresh=0.0)
