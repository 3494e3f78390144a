"""Relaxation lines hold at every point: grid, ends and corners, of degenerate, tiny, huge and one-sided intervals."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from surebound import rules
from surebound.graph.decompose import ABOUT
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules.registry import Context
from surebound.rules.relax.lines import Slopes
from surebound.rules.relax.relu import hinge_lines
from tests.bounds.relaxation_cases import CASES, Case, call, operator

# (lower, width) in units of the case's own scale, from the ordinary to the degenerate.
ORDINARY = [
    (-1.0, 2.0),
    (-0.1, 3.0),
    (-3.0, 3.1),
    (0.2, 0.5),
    (-2.0, 1.0),
    (-0.5, 0.5),
    (0.0, 1.0),
    (-8.0, 16.0),
]
ODD = [(0.3, 0.0), (0.0, 0.0), (-0.7, 0.0), (0.5, 6e-8), (-1e-8, 2e-8), (-1e-30, 3e-30), (-1e-42, 2e-42)]
HUGE = [(-100.0, 300.0), (-1e6, 1e3), (-1e10, 3e10), (50.0, 1e8)]


def boxes(case: Case, shape: tuple[int, ...], domain: tuple[float, float], seed: int) -> Interval:
    """(B, *shape) intervals of every kind in every position, inside the domain."""
    generator = torch.Generator().manual_seed(seed)
    kinds = ORDINARY * 2 + ODD + HUGE
    size = torch.Size((16, *shape)).numel()
    pick = torch.randint(len(kinds), (size,), generator=generator)
    table = torch.tensor(kinds, dtype=torch.float64)[pick]
    lower, upper = table[:, 0], table[:, 0] + table[:, 1]
    if domain[0] > 0:
        lower, upper = lower.abs().minimum(upper.abs()), lower.abs().maximum(upper.abs())
    if domain[1] < 0:
        lower, upper = -lower.abs().maximum(upper.abs()), -lower.abs().minimum(upper.abs())
    ends = torch.stack([lower.clamp(*domain), upper.clamp(*domain)]).float()
    return Interval(ends.amin(0).reshape(16, *shape), ends.amax(0).reshape(16, *shape))


def points(box: Interval, generator: torch.Generator) -> list[Tensor]:
    """Corners, a grid and random points, all inside."""
    low, high = box.lower.double(), box.upper.double()
    shares = [torch.full_like(low, t) for t in torch.linspace(0, 1, 21).tolist()]
    shares += [torch.rand(low.shape, generator=generator, dtype=torch.float64) for _ in range(10)]
    shares += [torch.rand(low.shape, generator=generator, dtype=torch.float64).round() for _ in range(10)]
    found = [(low + (high - low) * t).float() for t in shares]
    zero = [torch.zeros_like(box.lower)]
    return [p.maximum(box.lower).minimum(box.upper) for p in found + zero]


def sums(a: Tensor, value: Tensor) -> Tensor:
    return (a.double() * value.double()).flatten(2).sum(2)


def one_hot(result: Tensor) -> Tensor:
    """Every entry by itself with either sign: (2 N, B, *out)."""
    eye = torch.eye(result[0].numel()).unsqueeze(1).expand(-1, result.shape[0], -1)
    return torch.cat([eye, -eye]).reshape(-1, *result.shape)


def prepare(case: Case) -> tuple[Interval, Interval]:
    shape = case.shape or (4, 5)
    x = boxes(case, shape, case.domain, 1)
    y = boxes(case, case.other or shape, case.y_domain, 2)
    return x, y


def with_batch(args: Any, batch: int) -> Any:
    """Constants among joined parts have the batch's size."""
    if isinstance(args, (list, tuple)):
        return type(args)(with_batch(a, batch) for a in args)
    return args.expand(batch, *args.shape[1:]) if isinstance(args, Tensor) and args.dim() == 3 else args


@pytest.mark.parametrize("mode", list(Soundness), ids=lambda m: m.value)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label)
def test_lines_hold(case: Case, mode: Soundness) -> None:
    rule = rules.find(f"aten.{case.op}")
    assert rule is not None
    assert rule.relax is not None
    x, y = prepare(case)
    args, kwargs = call(case, x, y)
    step = rule.relax(Context(mode), *with_batch(args, 16), **kwargs)
    step = step[0] if isinstance(step, tuple) else step
    assert step is not None
    generator = torch.Generator().manual_seed(3)
    names = [n for n in _flat(case.args) if isinstance(n, str) and n in ("x", "y")]
    worst = -torch.inf
    for px, py in zip(points(x, generator), points(y, generator), strict=True):
        # REAL speaks of exact results, DEPLOYED of those too and of what the operator computes in float32.
        exact = mode is Soundness.REAL and rule.family not in ("shape",)
        put = (px.double(), py.double()) if exact and not _natively(case) else (px, py)
        arguments, keywords = call(case, *put)
        result = operator(case)(*with_batch(arguments, 16), **keywords)
        result = result[0] if isinstance(result, tuple) else result
        a = torch.cat([torch.randn(4, *result.shape, generator=generator), one_hot(result)])
        pulled = step.pull(a)
        right = pulled.offset
        for name, coefficients in zip(names, pulled.coefficients, strict=True):
            right = right + sums(coefficients, px if name == "x" else py)
        gap = sums(a, result) - right
        scale = 1.0 if mode is not Soundness.NONE else 0.0
        size = sums(a.abs(), result.abs()) + pulled.offset.abs()
        for name, coefficients in zip(names, pulled.coefficients, strict=True):
            box = x if name == "x" else y
            gap = gap - step.owes * sums(coefficients.abs(), box.magnitude)  # for the layer before to pay
            size = size + sums(coefficients.abs(), (px if name == "x" else py).abs())
        # float64 rounding of this very comparison; in NONE also float32's of the lines.
        tolerance = size * (1e-14 if scale else 3e-5) + (1e-300 if scale else 1e-4)
        assert not bool((gap > tolerance).any()), f"{float((gap - tolerance).max())} above"
        worst = max(worst, float(gap.max()))
    assert torch.isfinite(torch.tensor(worst))


def _flat(args: Any) -> list[Any]:
    return [item for a in args for item in (a if isinstance(a, list) else [a])]


def _natively(case: Case) -> bool:
    """Numbers in the call mean float32 numbers: the exact function cannot be evaluated in float64."""
    return any(isinstance(a, (float, Tensor)) for a in _flat(case.args)) or case.op.startswith(("hardtanh", "leaky"))


def _elementwise(case: Case) -> bool:
    rule = rules.find(f"aten.{case.op}")
    return rule is not None and rule.activation is not None


@pytest.mark.parametrize("case", list(filter(_elementwise, CASES)), ids=lambda c: c.label)
def test_lines_are_no_looser_than_intervals_in_the_middle(case: Case) -> None:
    rule = rules.find(f"aten.{case.op}")
    assert rule is not None
    assert rule.relax is not None
    x = boxes(case, (4, 5), case.domain, 1)
    args, kwargs = call(case, x, x)
    context = Context(Soundness.REAL)
    step, out = rule.relax(context, *args, **kwargs), rule.interval(context, *args, **kwargs)
    middle = (x.lower.double() + x.upper.double()) / 2
    ordinary = (x.upper - x.lower < 20) & (x.upper - x.lower > 1e-3) & (x.lower.abs() < 1e3)
    for line, slope, end, sign in (
        (step.intercepts[1], step.upper[0], out.upper, 1),
        (step.intercepts[0], step.lower[0], out.lower, -1),
    ):
        gap = sign * (slope.double() * middle + line.double() - end.double())
        assert bool((gap[ordinary] <= 1e-4 * (1 + end[ordinary].abs())).all())


def test_every_relaxation_has_a_case() -> None:
    # Ours that PyTorch's operators are written with is held against its step in tests/rules/test_steps.py.
    with_relax = {rule.op for rule in rules.all_rules() if rule.relax is not None} - {ABOUT}
    assert with_relax == {f"aten.{case.op}" for case in CASES}


def test_the_upper_line_of_relu_is_above_at_both_ends() -> None:
    """A guard in the denominator, or a rounded-down slope, puts the line below ReLU(u)."""
    generator = torch.Generator().manual_seed(0)
    low = -torch.rand(1, 20000, generator=generator) * 10 ** (torch.rand(1, 20000, generator=generator) * 40 - 36)
    high = torch.rand(1, 20000, generator=generator) * 10 ** (torch.rand(1, 20000, generator=generator) * 40 - 36)
    rule = rules.find("aten.relu.default")
    assert rule is not None
    assert rule.relax is not None
    step = rule.relax(Context(Soundness.DEPLOYED), Interval(low, high))
    slope, intercept = step.upper[0].double(), step.upper_intercept.double()
    assert bool((slope * low.double() + intercept >= 0).all())
    assert bool((slope * high.double() + intercept >= high.double()).all())
    assert bool(((slope >= 0) & (slope <= 1)).all())
    # And hardly higher than it must be.
    wide = low.double().abs() + high.double()
    assert bool((slope * high.double() + intercept - high.double() <= 1e-6 * wide + 1e-36).all())


def test_of_two_writes_to_one_place_either_may_win() -> None:
    """So there is no line; the interval rule does what this machine does."""
    x = boxes(CASES[0], (4, 5), (-1.0, 1.0), 1)
    y = boxes(CASES[0], (4, 2), (-1.0, 1.0), 2)
    twice = torch.tensor([3, 3])
    for op, args in (
        ("aten.scatter.src", (x, 2, twice.expand(16, 4, 2), y)),
        ("aten.index_put.default", (x, [None, None, twice], y)),
    ):
        rule = rules.find(op)
        assert rule is not None
        assert rule.relax is not None
        assert rule.relax(Context(Soundness.DEPLOYED), *args) is None


@pytest.mark.parametrize("slopes", get_args(Slopes))
@pytest.mark.parametrize("left", [-1.0, -0.5, 0.0, 0.3, 0.9])
def test_every_choice_of_lower_slopes_is_a_line_below(left: float, slopes: Slopes) -> None:
    """A slope of 0 is none of LeakyReLU's: the nearest that is one has to stand for it."""
    low, high = torch.tensor([[-1.0, -0.1, -3.0]]), torch.tensor([[1.0, 2.9, 0.1]])
    found = hinge_lines(Context(Soundness.NONE), Interval(low, high), left, 1.0).with_lower(slopes)
    x = low + (high - low) * torch.linspace(0, 1, 41).unsqueeze(1)  # (41, 3)
    assert bool((found.lower[0] * x + found.intercepts[0] <= torch.maximum(left * x, x) + 1e-6).all())
