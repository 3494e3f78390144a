"""Planes of softmax and of products of matrices: for any turn, against intervals, and optimised on a tiny attention."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from surebound.bounds.constants import Constants
from surebound.bounds.linear.alpha import Adam, NamedMultipliers, optimise
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import relax
from surebound.errors import BoundError
from surebound.graph import program_of
from surebound.graph.decompose import about
from surebound.interval import Interval
from surebound.numerics import Soundness, gamma
from surebound.rules import Context, find
from surebound.rules.relax.lines import Pulled
from surebound.rules.relax.products import Products, matmul_planes
from surebound.rules.relax.softmax import SoftmaxPlanes
from tests.rules.harness import generator
from tests.rules.steps import check, coefficients

SOUND = (Soundness.REAL, Soundness.DEPLOYED)


def _interval(g: torch.Generator, *shape: int, radius: float = 1.0, at: float = 1.0) -> Interval:
    middle, radii = at * torch.randn(shape, generator=g), radius * torch.rand(shape, generator=g)
    return Interval(middle - radii, middle + radii)


def _point(g: torch.Generator, x: Interval) -> Tensor:
    part = torch.rand(x.shape, generator=g).round(decimals=0) if torch.rand((), generator=g) < 0.5 else 0.5
    return torch.minimum(torch.maximum(x.lower + part * (x.upper - x.lower), x.lower), x.upper)


@dataclasses.dataclass(frozen=True)
class _Turned:
    """Products with one turn of their planes."""

    step: Products
    slope: Tensor
    owes = 0.0
    loose = True

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        return self.step.pull(a, self.slope.to(a.dtype))

    def select(self, index: Tensor | slice) -> _Turned:
        return self


@pytest.mark.parametrize("mode", SOUND)
@pytest.mark.parametrize("at", [1.0, 1000.0])
def test_turned_planes_hold(mode: Soundness, at: float) -> None:
    g = generator(1)
    x, y = _interval(g, 2, 3, 4, radius=0.5, at=at), _interval(g, 2, 4, 2, at=at)
    step = matmul_planes(Context(mode), x, y)
    assert step is not None and step.turned == (2, 2, 3, 4, 2)
    for slope in (torch.zeros(step.turned), torch.ones(step.turned), torch.rand(step.turned, generator=g)):
        for _ in range(3):
            point = [_point(g, x), _point(g, y)]
            a = coefficients(torch.Size((2, 3, 2)), g)
            exact = point[0].double() @ point[1].double()
            check(_Turned(step, slope), a, point, [x, y], exact, mode.value)
            if mode is Soundness.DEPLOYED:
                check(_Turned(step, slope), a, point, [x, y], point[0] @ point[1], mode.value)


def test_turned_planes_pay_for_sums_over_all_summands() -> None:
    """Two sums of m k n products in float64 move the offset; a float64 network pays for nothing coarser."""
    g = generator(7)
    x, y = (Interval(v - 0.5, v + 0.5) for v in (torch.randn(1, n, n, generator=g).double() for n in (16, 16)))
    step = matmul_planes(Context(Soundness.REAL), x, y)
    assert step is not None
    size = x.magnitude @ y.magnitude
    assert bool((step.error >= 2 * gamma(16**3, torch.float64) * size).all())


def test_turned_planes_touch_the_corners_that_they_should() -> None:
    """Turned all the way they are McCormick's: exact where one factor is at its end."""
    g = generator(2)
    x, y = _interval(g, 1, 1, 1), _interval(g, 1, 1, 1)
    step = matmul_planes(Context(Soundness.NONE), x, y)
    assert step is not None and step.turned is not None
    one = torch.ones(1, 1, 1, 1)
    for turn, sign, ends in (
        (1.0, 1.0, (x.lower, y.upper)),
        (0.0, 1.0, (x.upper, y.lower)),
        (1.0, -1.0, (x.lower, y.lower)),
    ):
        pulled = step.pull(sign * one, torch.full(step.turned, turn))
        value = sum((c[0] * end).sum() for c, end in zip(pulled.coefficients, ends, strict=True)) + pulled.offset
        assert float(value) == pytest.approx(sign * float(ends[0] * ends[1]), abs=1e-5)


def _planes(mode: Soundness, x: Interval, dim: int = -1) -> SoftmaxPlanes:
    rule = find("aten.softmax.int")
    assert rule is not None and rule.relax is not None
    step = rule.relax(Context(mode), x, dim)
    assert isinstance(step, SoftmaxPlanes)
    return step


@pytest.mark.parametrize("mode", SOUND)
@pytest.mark.parametrize(("radius", "at"), [(0.01, 1.0), (1.0, 3.0), (20.0, 1.0), (200.0, 1.0), (0.5, 300.0)])
def test_softmax_planes_hold(mode: Soundness, radius: float, at: float) -> None:
    g = generator(3)
    x = _interval(g, 2, 2, 5, radius=radius, at=at)
    step = _planes(mode, x)
    for _ in range(8):
        point, a = _point(g, x), coefficients(x.shape, g)
        check(step, a, [point], [x], torch.softmax(point.double(), -1), mode.value)
        if mode is Soundness.DEPLOYED:
            check(step, a, [point], [x], torch.softmax(point, -1), mode.value)


def test_what_the_entries_of_a_softmax_share_costs_nothing() -> None:
    x = _interval(generator(4), 1, 6, radius=2.0)
    pulled = _planes(Soundness.REAL, x).pull(torch.full((1, 1, 6), 3.0))
    assert float(pulled.offset) == pytest.approx(3, abs=1e-9)
    assert not bool(pulled.coefficients[0].any())


@pytest.mark.parametrize("mode", SOUND)
def test_masked_entries_of_a_softmax(mode: Soundness) -> None:
    """-infinite arguments have the value 0 and no slopes; who is left alone has the value 1."""
    g = generator(8)
    x = _interval(g, 2, 4, 5)
    masked = torch.arange(5) > torch.arange(4).unsqueeze(1)  # the first row keeps one entry
    x = x.select(lambda v: v.masked_fill(masked, -math.inf))
    out = find("aten.softmax.int").interval(Context(mode), x, -1)  # type: ignore[union-attr]
    assert bool((out.lower[:, 0, 0] > 0.999).all()) and bool((out.upper[masked.expand(2, 4, 5)] < 1e-30).all())
    step = _planes(mode, x)
    live = x.select(lambda v: v.masked_fill(masked, 0.0))
    for _ in range(8):
        point, a = _point(g, live), coefficients(x.shape, g)
        values = torch.softmax(point.masked_fill(masked, -math.inf).double(), -1)
        assert not bool(step.pull(a).coefficients[0].masked_select(masked).any())
        check(step, a, [point], [live], values, mode.value)


@pytest.mark.parametrize("mode", SOUND)
@pytest.mark.parametrize("op", ["masked_fill.Scalar", "where.ScalarSelf"])
def test_lines_of_masked_scores(mode: Soundness, op: str) -> None:
    """With coefficients of 0 at infinite entries the lines are those of the others; with any other nothing is known."""
    g = generator(9)
    x = _interval(g, 2, 4, 5)
    masked = torch.arange(5) > torch.arange(4).unsqueeze(1)
    rule = find(f"aten.{op}")
    assert rule is not None and rule.relax is not None
    first, second, third = (x, masked, -math.inf) if op.startswith("masked") else (masked, -math.inf, x)
    step = rule.relax(Context(mode), first, second, third)
    for _ in range(4):
        point, a = _point(g, x), coefficients(x.shape, g)
        lost = (a.masked_fill(~masked, 0.0) != 0).flatten(2).any(2)  # (S, B)
        assert bool(lost.any()) and torch.equal(step.pull(a).offset == math.inf, lost)
        kept = a.masked_fill(masked, 0.0)
        check(step, kept, [point], [x], point.masked_fill(masked, 0.0).double(), mode.value)
        check(step.select(slice(1, 2)), kept[:, 1:], [point[1:]], [Interval(x.lower[1:], x.upper[1:])],
              point[1:].masked_fill(masked, 0.0).double(), mode.value)  # fmt: skip
        assert bool(step.pull(kept).offset.isfinite().all())
        assert not bool(step.pull(kept.masked_fill(masked, math.nan)).offset.isfinite().any())


def test_sizes_alone_never_pass_for_the_value() -> None:
    class Sized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = about(torch.ones(1, 2), x, 16.0)
            return made + x

    program = program_of(Sized(), torch.ones(1, 2))
    with pytest.raises(BoundError, match="does not vary"):
        Constants(program).calls()


def test_softmax_planes_are_closer_than_intervals() -> None:
    """On narrow boxes the largest value of a plane is that of the softmax, to first order."""
    g = generator(5)
    x = _interval(g, 1, 6, radius=0.1)
    a = torch.randn(1, 1, 6, generator=g)
    pulled = _planes(Soundness.NONE, x).pull(a)
    back = pulled.coefficients[0]
    best = float((torch.where(back > 0, x.upper, x.lower) * back).sum() + pulled.offset)
    out = find("aten.softmax.int").interval(Context(Soundness.NONE), x, -1)  # type: ignore[union-attr]
    by_interval = float((torch.where(a > 0, out.upper, out.lower) * a).sum())
    samples = x.lower + torch.rand(4000, 6, generator=g).round() * (x.upper - x.lower)
    truth = float((torch.softmax(samples, -1) * a[0, 0]).sum(-1).max())
    assert truth <= best <= truth + 0.1 * (by_interval - truth)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        p = torch.softmax(self.q(x) @ self.k(x).mT, -1)
        return self.out(torch.relu(p @ self.v(x))).mean(1)


def test_turned_planes_tighten_attention_soundly() -> None:
    torch.manual_seed(6)
    net = _Attention().eval().requires_grad_(False)
    x = torch.randn(1, 3, 4)
    box = Interval(x - 0.2, x + 0.2)
    with torch.no_grad():
        relaxed: Relaxed = relax(program_of(net, x), box, Soundness.DEPLOYED, own=True)
    c, d = torch.eye(4).unsqueeze(0), torch.zeros(1, 4)
    plain = relaxed.evaluate(c, d).upper
    start = NamedMultipliers.start(relaxed, 4)
    turned = [name for name, step in relaxed.steps.items() if isinstance(step, Products) and name in start.alphas]
    assert len(turned) == 2
    slopes = NamedMultipliers({k: v for k, v in start.alphas.items() if k not in turned}, {})
    d = d + 100  # far from proved: nothing is dropped
    both, _ = optimise(relaxed, c, d, Adam(steps=30, alpha_rate=0.1))
    without, _ = optimise(relaxed, c, d, Adam(steps=30, alpha_rate=0.1), slopes)
    assert bool((both - 100 <= plain + 1e-4).all()) and float(both.sum()) < float(without.sum())
    points = x + 0.2 * torch.empty(2000, 3, 4).uniform_(-1, 1).sign()
    assert bool((net(points).amax(0) <= both[0] - 100 + 1e-5).all())
