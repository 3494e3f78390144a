"""Lines around any other function of one variable: exact for convex, concave and piecewise linear ones, and for the
rest from values on a grid together with a bound on the second derivative.

Between two points at distance h, a function with |f''| <= M is at most M h^2 / 8 from its chord; so is f(x) - s x for
every slope s. Hence the least intercept of a line of slope s above f is at most the largest f(p) - s p over the points
p of a grid plus M h^2 / 8. Kinks are added to the grid. All in float64; what that rounds is covered by a factor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import FUNCTION_ERROR, Soundness, amply_up, slightly_up, tiny, unit_roundoff
from surebound.rules.facts import Activation, Shape
from surebound.rules.registry import Context, IntervalRule
from surebound.rules.relax.lines import Lines, lines

#: Parts of the grid.
PARTS = 32

Curvature = Callable[..., Tensor]  # (lower, upper, *parameters of the operator) -> bound of |f''| between them


@dataclass(frozen=True)
class Bend:
    """A bound of |f''| away from the kinks, and the kinks."""

    curvature: float | Curvature
    kinks: tuple[float | Tensor, ...] = ()  # numbers, or tensors that broadcast to the argument


@dataclass(frozen=True)
class _PointwiseLine:
    slope: Tensor  # in the network's dtype
    intercept: Tensor  # float64


def pointwise_lines(
    facts: Activation,
    interval: IntervalRule,
    bend: Bend | None,
    ctx: Context,
    x: Interval,
    *args: Any,
    **kwargs: Any,
) -> Lines | None:
    """Relax an elementwise function, its own rounding error included; never outside of its interval bounds.

    None of truth values, which have no coefficients.
    """
    if x.dtype == torch.bool:
        return None
    f = facts.bind(*args, **kwargs)
    out = interval(ctx, x, *args, **kwargs)
    if f.pieces is not None:
        kinks = tuple(piece[0] for piece in f.pieces() if piece[0] > -math.inf)
        native = dataclasses.replace(f, fn=partial(_natively, f, x.dtype))
        return function_lines(ctx, native, Bend(0.0, kinks), x, out)
    if bend is not None and not isinstance(bend.curvature, float):
        curvature = bend.curvature
        bend = Bend(lambda low, high: curvature(low, high, *args, **kwargs), bend.kinks)
    return function_lines(ctx, f, bend, x, out)


def function_lines(ctx: Context, f: Activation, bend: Bend | None, x: Interval, out: Interval) -> Lines:
    """Relax a function by its facts and its bounds ``out``; f computes in float64."""
    low, high = x.lower.double(), x.upper.double()
    if f.pieces is None and f.shape in (Shape.CONVEX, Shape.CONCAVE) and f.derivative is not None:
        below, above = _tangent_and_chord(f, x, low, high)
    elif bend is not None:
        known = bend.curvature
        curvature = torch.full_like(low, known) if isinstance(known, float) else known(low, high)
        parts = 1 if known == 0.0 else PARTS  # piecewise linear: the ends and the kinks are enough
        below, above = _grid(f, x, low, high, parts=parts, kinks=bend.kinks, curvature=curvature)
    else:
        below, above = _flat(x, out.lower), _flat(x, out.upper)
    error = _own_error(ctx, f, out)
    middle = (low + high) / 2
    below = _better(_PointwiseLine(below.slope, below.intercept - error), _flat(x, out.lower), middle, 1.0)
    above = _better(_PointwiseLine(above.slope, above.intercept + error), _flat(x, out.upper), middle, -1.0)
    if ctx.soundness is Soundness.NONE:
        dtype = x.dtype
        below, above = (_PointwiseLine(line.slope, line.intercept.to(dtype)) for line in (below, above))
    return lines(ctx, (x,), (below.slope,), below.intercept, (above.slope,), above.intercept)


def _natively(f: Activation, dtype: torch.dtype, x: Tensor) -> Tensor:
    """Evaluate a piecewise linear function in the network's dtype: its numbers mean those converted to it."""
    return f.fn(x.to(dtype)).double()


def _flat(x: Interval, value: Tensor) -> _PointwiseLine:
    return _PointwiseLine(torch.zeros_like(x.lower), value.double())


def _better(line: _PointwiseLine, flat: _PointwiseLine, middle: Tensor, sign: float) -> _PointwiseLine:
    """Choose the line that is closer at the middle; the flat one where the other is not a number."""
    keep = sign * (line.slope.double() * middle + line.intercept) >= sign * flat.intercept
    keep = keep & line.slope.isfinite() & line.intercept.isfinite()
    return _PointwiseLine(torch.where(keep, line.slope, flat.slope), torch.where(keep, line.intercept, flat.intercept))


def _own_error(ctx: Context, f: Activation, out: Interval) -> Tensor:
    """Bound how far the network's evaluation of f may be from f, (B, ...) in float64."""
    size = out.magnitude.double()
    if ctx.soundness is Soundness.NONE:
        return torch.zeros_like(size)
    jump = torch.full_like(size, amply_up(f.jump))
    if (ctx.soundness is Soundness.REAL and f.pieces is None) or (f.ulps == 0 and f.absolute == 0):
        return jump
    rate, least = 4 * unit_roundoff(out.dtype), tiny(out.dtype)
    return jump + ((f.ulps + 1) * size + f.absolute) * rate + (f.underflow + 2) * least


def _tangent_and_chord(f: Activation, x: Interval, low: Tensor, high: Tensor) -> tuple[_PointwiseLine, _PointwiseLine]:
    """Return the lower and upper line: tangent at the middle and chord, on the sides where they belong."""
    middle, derivative = (low + high) / 2, f.derivative
    if derivative is None:
        raise BoundError("a curved function without a derivative has no tangent")
    sign = 1.0 if f.shape is Shape.CONVEX else -1.0
    exact = derivative(middle)
    slope = exact.to(x.dtype)
    value = f.fn(middle)
    # The slope was rounded: at the ends of the interval that matters by half the width.
    lost = (exact - slope.double()).abs() * (high - low) + FUNCTION_ERROR * (
        value.abs() + exact.abs() * largest_size(low, high)
    )
    tangent = _PointwiseLine(slope, value - slope.double() * middle - sign * lost)
    at_low, at_high = f.fn(low), f.fn(high)
    width = torch.where(high > low, high - low, torch.ones_like(low))
    slope = ((at_high - at_low) / width).to(x.dtype)
    ends = torch.stack([at_low - slope.double() * low, at_high - slope.double() * high])
    lost = FUNCTION_ERROR * (at_low.abs() + at_high.abs() + slope.double().abs() * largest_size(low, high))
    chord = _PointwiseLine(slope, (ends.amax(0) if sign > 0 else ends.amin(0)) + sign * lost)
    return (tangent, chord) if sign > 0 else (chord, tangent)


def largest_size(low: Tensor, high: Tensor) -> Tensor:
    """Return max |x| between two ends."""
    return torch.maximum(low.abs(), high.abs())


def _grid(
    f: Activation,
    x: Interval,
    low: Tensor,
    high: Tensor,
    *,
    parts: int,
    kinks: tuple[float | Tensor, ...],
    curvature: Tensor,
) -> tuple[_PointwiseLine, _PointwiseLine]:
    """Return the best lines among a few slopes, each as close as the grid allows."""
    slopes = list(_slopes(f, x, low, high))
    tops = [torch.full_like(low, -torch.inf) for _ in slopes]
    bottoms = [torch.full_like(low, torch.inf) for _ in slopes]
    largest = torch.zeros_like(low)
    step = (high - low) / parts
    points = [low + step * i for i in range(parts)] + [high]
    # A number as the network reads it.
    rounded = (
        (kink.to(x.dtype) if isinstance(kink, Tensor) else torch.full_like(x.lower, kink)).double() for kink in kinks
    )
    points += [torch.minimum(torch.maximum(kink, low), high) for kink in rounded]
    for point in points:
        value = f.fn(point)
        largest = torch.maximum(largest, value.abs())
        for k, slope in enumerate(slopes):
            rest = value - slope.double() * point
            tops[k], bottoms[k] = torch.maximum(tops[k], rest), torch.minimum(bottoms[k], rest)
    middle, gap = (low + high) / 2, slightly_up(curvature * step * step) / 8
    above = below = None
    for slope, top, bottom in zip(slopes, tops, bottoms, strict=True):
        slack = gap + FUNCTION_ERROR * (largest + slope.double().abs() * largest_size(low, high))
        upper, lower = _PointwiseLine(slope, top + slack), _PointwiseLine(slope, bottom - slack)
        above = upper if above is None else _closer(above, upper, middle, -1.0)
        below = lower if below is None else _closer(below, lower, middle, 1.0)
    if above is None or below is None:  # _slopes gives at least the chord
        raise BoundError("no slope to try")
    return below, above


def _closer(first: _PointwiseLine, second: _PointwiseLine, middle: Tensor, sign: float) -> _PointwiseLine:
    at_first, at_second = (line.slope.double() * middle + line.intercept for line in (first, second))
    keep = ~(sign * at_second > sign * at_first)
    return _PointwiseLine(
        torch.where(keep, first.slope, second.slope), torch.where(keep, first.intercept, second.intercept)
    )


def _slopes(f: Activation, x: Interval, low: Tensor, high: Tensor) -> Iterator[Tensor]:
    """Yield the slopes of the chord and of the function at the ends and in the middle; in the network's dtype."""
    width = torch.where(high > low, high - low, torch.ones_like(low))
    yield ((f.fn(high) - f.fn(low)) / width).to(x.dtype)
    if f.derivative is not None:
        for point in (low, high, (low + high) / 2):
            yield f.derivative(point).to(x.dtype)
