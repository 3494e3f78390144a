"""Powers: square, reciprocal, rsqrt, and pow with a number, a constant tensor or an interval as base or exponent."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import Soundness, outward, tiny
from surebound.rules.activation import elementwise_interval, register_activation
from surebound.rules.facts import Activation, Shape
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.lines import Lines
from surebound.rules.relax.pairs import joint_shape
from surebound.rules.relax.pointwise import Bend, function_lines, largest_size

_INF = math.inf
_ULPS = 4.0

SQUARE = Activation(
    torch.square,
    increasing=False,
    ulps=2,
    shape=Shape.CONVEX,
    valley=(0.0, 0.0),
    derivative=lambda x: 2 * x,
    range=(0.0, _INF),
)
register_activation("aten.square.default", SQUARE)


def check_clear_of_zero(ctx: Context, x: Interval, what: str) -> None:
    """Refuse an interval that holds 0 or, in the sound modes, a number that hardware may flush to 0."""
    edge = 0.0 if ctx.soundness is Soundness.NONE else tiny(x.dtype)
    near = ((x.lower < edge) | (x.lower == 0)) & ((x.upper > -edge) | (x.upper == 0))  # False for NaN
    if bool(near.any()):
        raise BoundError(
            f"{what} an interval that contains 0: the result has no bound; keep its sign definite, "
            "e.g. by adding a constant or with clamp(min=...)"
        )


def check_positive(ctx: Context, x: Interval, what: str) -> None:
    """Refuse an interval that is not clear of 0 or reaches below it."""
    check_clear_of_zero(ctx, x, what)
    if bool((x.lower < 0).any()):
        raise BoundError(f"{what} an interval that reaches below 0: no bound exists; keep the argument positive")


_RECIPROCAL = Activation(torch.reciprocal, increasing=False, ulps=2, derivative=lambda x: -1 / (x * x))
_RSQRT = Activation(
    torch.rsqrt,
    increasing=False,
    ulps=4,
    derivative=lambda x: -0.5 * torch.rsqrt(x) / x,
    range=(0.0, _INF),
    domain=(0.0, _INF),
)


def _reciprocal(ctx: Context, x: Interval) -> Interval:
    check_clear_of_zero(ctx, x, "the reciprocal of")
    return elementwise_interval(_RECIPROCAL, ctx, x)


def _rsqrt(ctx: Context, x: Interval) -> Interval:
    check_positive(ctx, x, "the reciprocal square root of")
    return elementwise_interval(_RSQRT, ctx, x)


register_activation(
    "aten.reciprocal.default",
    _RECIPROCAL,
    interval=_reciprocal,
    bend=Bend(lambda low, high: 2 / torch.minimum(low.abs(), high.abs()).pow(3)),
    note="sign-definite",
)
register_activation(
    "aten.rsqrt.default",
    _RSQRT,
    interval=_rsqrt,
    bend=Bend(lambda low, high: 0.75 * low.pow(-2.5)),
    note="positive",
)


def _power(exponent: float) -> Activation:
    """Return the facts of x ** exponent: by its parity where it is an integer, else on x >= 0."""
    p = float(exponent)
    if p == 1.0:
        return Activation(lambda x: x.clone(), shape=Shape.CONVEX, pieces=lambda: ((-_INF, 1.0, 0.0),))
    even = p % 2 == 0
    whole = p == math.floor(p)
    rising = p > 0 and not (whole and even)
    convex = (p >= 0 and whole and even) or (not whole and (p < 0 or p > 1))
    return Activation(
        lambda x: torch.pow(x, exponent),
        increasing=rising or p == 0,
        ulps=_ULPS,
        shape=Shape.CONVEX if convex else Shape.CONCAVE if not whole else Shape.OTHER,
        derivative=lambda x: p * torch.pow(x, p - 1),
        valley=(0.0, 0.0) if whole and even and p > 0 else None,
        range=(0.0, _INF) if even or not whole else (-_INF, _INF),
        domain=(-_INF, _INF) if whole else (0.0, _INF),
        steep=not whole,
    )


def _pow_number(ctx: Context, x: Interval, exponent: float) -> Interval:
    if exponent < 0:
        whole = exponent == math.floor(exponent)
        (check_clear_of_zero if whole else check_positive)(ctx, x, "a negative power of")
    return elementwise_interval(_POWER, ctx, x, exponent)


_POWER = Activation(torch.pow, increasing=False, ulps=_ULPS, specialise=_power)


def _power_curvature(low: Tensor, high: Tensor, exponent: float) -> Tensor:
    """Bound |p (p - 1)| |x|^(p - 2), largest at one end; where x^p has no bound there is none."""
    near = torch.where((low <= 0) & (high >= 0), torch.zeros_like(low), torch.minimum(low.abs(), high.abs()))
    at = largest_size(low, high) if exponent >= 2 else near
    return abs(exponent * (exponent - 1)) * at.pow(exponent - 2)


register_activation("aten.pow.Tensor_Scalar", _POWER, interval=_pow_number, bend=Bend(_power_curvature))


def _pow_tensors(ctx: Context, x: Any, exponent: Any) -> Interval:
    """Bound x^p, base or exponent or both varying: monotone in each while x > 0, so the extremes are at the corners."""
    if isinstance(x, Interval) and not isinstance(exponent, Interval):
        return _pow_constant(ctx, x, exponent)
    base = x if isinstance(x, Interval) else Interval.point(torch.as_tensor(x, dtype=exponent.dtype))
    check_positive(ctx, base, "a power with a varying exponent of")
    ends = [torch.pow(b, e) for b in (base.lower, base.upper) for e in (exponent.lower, exponent.upper)]
    return _hull(ctx, ends)


def _pow_constant(ctx: Context, x: Interval, p: Tensor) -> Interval:
    """Bound x^p with a constant exponent per entry, of any sign and parity."""
    whole = p == torch.floor(p)
    if bool((~whole & (x.lower < 0)).any()):
        raise BoundError("a fractional power of an interval that reaches below 0: no bound exists")
    shape = (x.lower * p).shape
    spread = x.select(lambda v: v.expand(shape))
    if bool((p < 0).any()):
        falling = torch.where((p < 0).expand(shape), spread.lower, 1.0), torch.where(p < 0, spread.upper, 1.0)
        check_clear_of_zero(ctx, Interval(*falling), "a negative power of")
    low = spread.lower
    if ctx.soundness is not Soundness.NONE:  # a subnormal base may be read as zero
        low = torch.where((low.abs() < tiny(low.dtype)) & (p > 0), torch.zeros_like(low), low)
    result = _hull(ctx, [torch.pow(low, p), torch.pow(spread.upper, p)])
    even = whole & (torch.remainder(p, 2) == 0) & (p > 0)
    bottom = even & (spread.lower <= 0) & (spread.upper >= 0)
    return Interval(torch.where(bottom, torch.zeros_like(low), result.lower), result.upper)


def _hull(ctx: Context, values: list[Tensor]) -> Interval:
    lower, upper = values[0], values[0]
    for value in values[1:]:
        lower, upper = torch.minimum(lower, value), torch.maximum(upper, value)
    return Interval(*outward(lower, upper, ctx.soundness, _ULPS))


def _power_lines(ctx: Context, base: Any, exponent: Any) -> Lines | None:
    """Relax c to the power x with a constant c > 0: convex in x."""
    if isinstance(base, Interval) or not isinstance(exponent, Interval):
        return None
    number = torch.as_tensor(base, dtype=exponent.dtype, device=exponent.device).detach().double()
    if joint_shape(number, exponent) != exponent.shape:
        return None
    f = Activation(
        lambda v: torch.pow(number, v),
        ulps=_ULPS,
        shape=Shape.CONVEX,
        derivative=lambda v: torch.log(number) * torch.pow(number, v),
    )
    return function_lines(ctx, f, None, exponent, _pow_tensors(ctx, base, exponent))


for _overload in ("Tensor_Tensor", "Scalar"):
    register(Rule(f"aten.pow.{_overload}", "activation", _pow_tensors, relax=_power_lines))
