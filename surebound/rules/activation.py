"""The interval rule that all elementwise functions share, and how they are registered."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.kernels.ends import relu_of_bounds
from surebound.numerics import Soundness, amply_up, outward, tiny
from surebound.rules.facts import Activation, Memory, Shape
from surebound.rules.owned import Owned
from surebound.rules.registry import Context, IntervalRule, Rule, register
from surebound.rules.relax.pointwise import Bend, pointwise_lines
from surebound.rules.relax.relu import relu_lines


def elementwise_interval(facts: Activation, ctx: Context, x: Interval, *args: Any, **kwargs: Any) -> Interval:
    """Bound an elementwise function by its exact hull: its values at the ends, and at a valley or peak (eq. 7)."""
    if isinstance(x, Owned) and facts.deferred is not None:
        return x.deferring(facts.deferred)
    f = facts.bind(*args, **kwargs)
    check_domain(x, f.domain)
    at_lower, at_upper = f.fn(_flushed(ctx, f, x.lower)), f.fn(x.upper)
    if f.increasing:
        lower, upper = at_lower, at_upper
    else:
        lower, upper = torch.minimum(at_lower, at_upper), torch.maximum(at_lower, at_upper)
    # Positions are right to float64 and are compared rounded: an end within that distance of the extremum misses it
    # by its square, which the outward move below covers.
    if f.valley is not None:
        bottom = torch.full_like(lower, f.valley[1])
        lower = torch.where(_inside(x, f.valley[0]), torch.minimum(lower, bottom), lower)
    if f.peak is not None:
        top = torch.full_like(upper, f.peak[1])
        upper = torch.where(_inside(x, f.peak[0]), torch.maximum(upper, top), upper)
    return widened(ctx, f, lower, upper)


def _flushed(ctx: Context, f: Activation, lower: Tensor) -> Tensor:
    """Return the lower ends, 0 where f is steep and hardware may read a subnormal argument as zero."""
    if not f.steep or ctx.soundness is Soundness.NONE:
        return lower
    return torch.where(lower.abs() < tiny(lower.dtype), torch.zeros_like(lower), lower)


def _inside(x: Interval, position: float) -> Tensor:
    return (x.lower <= position) & (position <= x.upper)


def widened(ctx: Context, f: Activation, lower: Tensor, upper: Tensor) -> Interval:
    """Widen the ends by the rounding error bound of f, without leaving its range."""
    if ctx.soundness is Soundness.NONE or (f.ulps == 0 and f.absolute == 0):
        return Interval(lower, upper)
    lower, upper = outward(lower, upper, ctx.soundness, f.ulps, f.absolute, f.underflow)
    if f.jump:
        lower, upper = lower - amply_up(f.jump), upper + amply_up(f.jump)
    if f.range != (-math.inf, math.inf):
        lower, upper = lower.clamp(*f.range), upper.clamp(*f.range)  # NaN stays NaN
    return Interval(lower, upper)


def check_domain(x: Interval, domain: tuple[float, float]) -> None:
    """Refuse bounds that reach where the function is not defined. NaN passes: it poisons the result."""
    low, high = domain
    if (low > -math.inf and bool((x.lower < low).any())) or (high < math.inf and bool((x.upper > high).any())):
        raise BoundError(
            f"the argument is only known to lie in [{float(x.lower.min()):.6g}, {float(x.upper.max()):.6g}], which "
            f"leaves the function's domain [{low:g}, {high:g}]: no bound exists; clamp the argument into the domain"
        )


def register_activation(
    op: str,
    facts: Activation,
    *,
    bend: Bend | None = None,
    interval: IntervalRule | None = None,
    relax: Callable[..., Any] | None = None,
    note: str = "",
) -> None:
    """Register an elementwise function: its interval rule and its lines follow from the facts, unless given.

    ``bend``: what the lines need to know of a function that is neither convex, concave nor piecewise linear.
    """
    interval = interval or partial(elementwise_interval, facts)
    relax = relax or partial(pointwise_lines, facts, interval, bend)
    memory = Memory.UNKNOWN if facts.deferred is None else Memory.OWN
    register(Rule(op, "activation", interval, activation=facts, relax=relax, note=note, memory=memory))


class _Relu:
    """ReLU of bounds in their own memory."""

    def ends(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        return lower.relu_(), upper.relu_()

    def center(self, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        return relu_of_bounds(center, radius)


def _relu_pieces() -> tuple[tuple[float, float, float], ...]:
    return ((-math.inf, 0.0, 0.0), (0.0, 1.0, 0.0))


register_activation(
    "aten.relu.default",
    Activation(
        torch.relu,
        deferred=_Relu(),
        relu=True,
        shape=Shape.CONVEX,
        pieces=_relu_pieces,
        derivative=lambda x: (x > 0).to(x.dtype),
        range=(0.0, math.inf),
    ),
    relax=relu_lines,
)
