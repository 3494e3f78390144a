"""Functions that are not monotone: their extrema are found, also from the floating point neighbours of their places."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import mpmath as mp
import pytest
import torch
from hypothesis import given
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Context, find
from tests.rules.reference import REFERENCES

MODES = [Soundness.REAL, Soundness.DEPLOYED]


def _bound(op: str, mode: Soundness, low: Tensor, high: Tensor, **kwargs: Any) -> Interval:
    rule = find(op)
    assert rule is not None
    found: Interval = rule.interval(Context(mode), Interval(low, high), **kwargs)
    return found


def _neighbours(value: float, dtype: torch.dtype) -> list[Tensor]:
    here = torch.tensor([value], dtype=dtype)
    up, down = torch.full_like(here, math.inf), torch.full_like(here, -math.inf)
    below, above = torch.nextafter(here, down), torch.nextafter(here, up)
    return [torch.nextafter(below, down), below, here, above, torch.nextafter(above, up)]


VALLEYS = [
    ("aten.gelu.default", {}),
    ("aten.gelu.default", {"approximate": "tanh"}),
    ("aten.silu.default", {}),
    ("aten.mish.default", {}),
    ("aten.hardswish.default", {}),
    ("aten.square.default", {}),
    ("aten.abs.default", {}),
    ("aten.cosh.default", {}),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("op", "kwargs"), VALLEYS)
def test_a_valley_is_not_missed(op: str, kwargs: dict[str, str], dtype: torch.dtype, mode: Soundness) -> None:
    rule = find(op)
    assert rule is not None and rule.activation is not None
    valley = rule.activation.bind(**kwargs).valley
    assert valley is not None
    true = REFERENCES[op + "".join(kwargs.values())]
    with mp.workprec(200):
        place = (
            mp.findroot(lambda t: mp.diff(true, t), valley[0]) if valley[0] not in (0.0, -1.5) else mp.mpf(valley[0])
        )
        assert abs(place - valley[0]) <= 2.0**-52 and abs(true(place) - valley[1]) <= 2.0**-54
        for low in _neighbours(valley[0], dtype):
            for high in [*_neighbours(valley[0], dtype), low + 0.5]:
                if low > high:
                    continue
                found = _bound(op, mode, low, high, **kwargs)
                inside = min(max(place, mp.mpf(float(low))), mp.mpf(float(high)))
                for point in (inside, mp.mpf(float(low)), mp.mpf(float(high))):
                    assert float(found.lower) <= true(point) <= float(found.upper)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("op", "true"), [("aten.sin.default", mp.sin), ("aten.cos.default", mp.cos)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_waves_by_their_extrema(op: str, true: Any, dtype: torch.dtype, mode: Soundness) -> None:
    """Ends at the neighbours of multiples of pi / 2, near and far from 0."""
    with mp.workprec(300):
        for k in (-5, -2, -1, 0, 1, 2, 3, 4, 1001, 4_000_003):
            center = k * mp.pi / 2
            for low in _neighbours(float(center), dtype):
                for high in [*_neighbours(float(center), dtype)[3:], low + 1.25, low + 3.0, low + 7.0]:
                    if low > high:
                        continue
                    found = _bound(op, mode, low, high)
                    a, b = mp.mpf(float(low)), mp.mpf(float(high))
                    first = int(mp.ceil(a / (mp.pi / 2)))
                    inner = [j * mp.pi / 2 for j in range(first, first + 6) if j * mp.pi / 2 <= b]
                    values = [true(point) for point in (a, b, *inner)]
                    assert float(found.lower) <= min(values) and max(values) <= float(found.upper)
                    assert float(found.upper) <= max(values) + 1e-5 and float(found.lower) >= min(values) - 1e-5


def test_waves_of_infinite_arguments_are_no_numbers() -> None:
    lower, upper = torch.tensor([-math.inf, 0.0, 0.0]), torch.tensor([math.inf, math.inf, 9.0])
    for op in ("aten.sin.default", "aten.cos.default"):
        found = _bound(op, Soundness.DEPLOYED, lower, upper)
        assert found.lower.isnan().tolist() == found.upper.isnan().tolist() == [True, True, False]
        assert (float(found.lower[2]), float(found.upper[2])) == (-1.0, 1.0)


ELEMENTWISE = [
    "relu", "leaky_relu", "elu", "selu", "celu", "sigmoid", "tanh", "hardtanh", "relu6", "hardsigmoid", "hardswish",
    "softplus", "gelu", "silu", "mish", "log_sigmoid", "exp", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "abs",
    "square", "sin", "cos", "erf", "atan", "sign",
]  # fmt: skip


@given(
    low=st.floats(-1e4, 1e4, width=32) | st.floats(-3, 3, width=32),
    width=st.sampled_from([0.0, 1e-30, 1e-6, 0.5, 3.0, 1e3]),
    inside=st.floats(0, 1),
)
def test_any_interval_of_any_function(low: float, width: float, inside: float) -> None:
    """Both library evaluations, in float32 and in float64 for the exact one, are inside."""
    lower = torch.tensor([low], dtype=torch.float32)
    upper = lower + width
    middle = (lower + (upper - lower) * inside).clamp(lower, upper)
    below, above = torch.nextafter(upper, lower), torch.nextafter(lower, upper)
    points = torch.cat([lower, upper, middle, below, above])
    for name in ELEMENTWISE:
        operator = getattr(torch.ops.aten, name).default
        try:
            found = _bound(f"aten.{name}.default", Soundness.DEPLOYED, lower, upper)
        except BoundError:
            assert name in ("log", "log1p", "sqrt", "rsqrt", "reciprocal") and low < 1.2e-38
            continue
        for value in (operator(points).double(), operator(points.double())):
            # Overflow of a bound is NaN or infinite: it says nothing.
            wrong = (value < found.lower.double()) | (value > found.upper.double())
            assert not wrong.any(), f"{name} on [{low!r}, {float(upper)!r}]"


@given(base=st.floats(0.0625, 30, width=32), width=st.floats(0, 10, width=32), p=st.floats(-4, 4, width=16))
def test_powers_of_any_exponent(base: float, width: float, p: float) -> None:
    low, high = torch.tensor([base]), torch.tensor([base]) + width
    rule = find("aten.pow.Tensor_Scalar")
    assert rule is not None
    for sign in (1, -1) if p == int(p) else (1,):
        ends = sorted((sign * float(low), sign * float(high)))
        x = Interval(torch.tensor([ends[0]]), torch.tensor([ends[1]]))
        found = rule.interval(Context(Soundness.DEPLOYED), x, p)
        for t in (0.0, 0.3, 1.0):
            point = x.lower + (x.upper - x.lower) * t
            for value in (torch.pow(point, p).double(), torch.pow(point.double(), p)):
                assert bool(((found.lower.double() <= value) & (value <= found.upper.double())).all())


STEPS = {"sign": torch.sign, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("mode", [Soundness.NONE, Soundness.REAL, Soundness.DEPLOYED])
def test_steps_hold_both_sides_of_a_jump(name: str, mode: Soundness) -> None:
    """Boxes that end at a jump, one number before it and one behind it: bounds and lines hold every float inside."""
    jumps = torch.arange(-6, 7) / 2
    near = torch.cat([jumps, torch.nextafter(jumps, jumps + 1), torch.nextafter(jumps, jumps - 1)])
    low, high = (each.reshape(1, -1) for each in torch.meshgrid(near, near, indexing="ij"))
    low, high = low[low <= high].unsqueeze(0), high[low <= high].unsqueeze(0)
    rule = find(f"aten.{name}.default")
    assert rule is not None and rule.relax is not None and rule.surrogate is not None
    x = Interval(low, high)
    bounds, found = rule.interval(Context(mode), x), rule.relax(Context(mode), x)
    bottom, top = (each.double() for each in found.intercepts)
    for point in near:
        inside = (low <= point) & (point <= high)
        value, at = STEPS[name](point).double(), point.double()
        assert bool((~inside | ((bounds.lower <= value) & (value <= bounds.upper))).all())
        slack = 1e-2 if mode is Soundness.NONE else 1e-30  # what ``absolute`` pays is underflow
        assert bool((~inside | (found.lower[0].double() * at + bottom <= value + slack)).all())
        assert bool((~inside | (found.upper[0].double() * at + top >= value - slack)).all())


def test_a_subnormal_end_may_be_read_as_zero() -> None:
    x = Interval(torch.tensor([[1e-40, -1.0]]), torch.tensor([[1.0, -1e-40]]))
    for name, lower, upper in (("sign", [0, -1], [1, 0]), ("ceil", [0, -1], [1, 0]), ("floor", [0, -1], [1, 0])):
        rule = find(f"aten.{name}.default")
        assert rule is not None
        bounds = rule.interval(Context(Soundness.DEPLOYED), x)
        assert (bounds.lower.tolist(), bounds.upper.tolist()) == ([lower], [upper])
