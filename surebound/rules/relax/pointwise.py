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
from surebound.rules.relax.lines import Fan, Lines, lines

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
    curved = f.pieces is None and f.shape in (Shape.CONVEX, Shape.CONCAVE) and f.derivative is not None
    grid = None if bend is None or curved else _Grid.of(f, bend, x, low, high)
    if curved:
        below, above = _tangent_and_chord(f, x, low, high, (low + high) / 2)
    elif grid is not None:
        below, above = grid.closest()
    else:
        below, above = _flat(x, out.lower), _flat(x, out.upper)
    error, middle = _own_error(ctx, f, out), (low + high) / 2

    def made(below: _PointwiseLine, above: _PointwiseLine, closer: Callable[..., _PointwiseLine]) -> Lines:
        below = closer(_PointwiseLine(below.slope, below.intercept - error), _flat(x, out.lower), middle, 1.0)
        above = closer(_PointwiseLine(above.slope, above.intercept + error), _flat(x, out.upper), middle, -1.0)
        if ctx.soundness is Soundness.NONE:
            dtype = x.dtype
            below, above = (_PointwiseLine(line.slope, line.intercept.to(dtype)) for line in (below, above))
        return lines(ctx, (x,), (below.slope,), below.intercept, (above.slope,), above.intercept)

    found = made(below, above, _better)
    if not ctx.fans or not (curved or grid is not None):
        return found
    ends = [(_tangent_and_chord(f, x, low, high, end) if grid is None else grid.at_end(end)) for end in (low, high)]
    first, last = (made(*pair, _finite) for pair in ends)
    return dataclasses.replace(found, fan=Fan.around(ctx, x, first, found, last))


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


def _finite(line: _PointwiseLine, flat: _PointwiseLine, middle: Tensor, sign: float) -> _PointwiseLine:
    """Choose the flat line where the other is not a number."""
    keep = line.slope.isfinite() & line.intercept.isfinite()
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


def _tangent_and_chord(
    f: Activation, x: Interval, low: Tensor, high: Tensor, point: Tensor
) -> tuple[_PointwiseLine, _PointwiseLine]:
    """Return the lower and upper line: tangent at a point and chord, on the sides where they belong."""
    if f.derivative is None:
        raise BoundError("a curved function without a derivative has no tangent")
    sign = 1.0 if f.shape is Shape.CONVEX else -1.0
    exact = f.derivative(point)
    slope = exact.to(x.dtype)
    value = f.fn(point)
    # The slope was rounded: at the ends of the interval that matters by the width at most.
    lost = (exact - slope.double()).abs() * (high - low) + FUNCTION_ERROR * (
        value.abs() + exact.abs() * largest_size(low, high)
    )
    tangent = _PointwiseLine(slope, value - slope.double() * point - sign * lost)
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


@dataclass(frozen=True)
class _Grid:
    """Values of a function at points of an interval, the kinks among them, and how far it may be from them."""

    f: Activation
    x: Interval
    low: Tensor  # (B, *n) float64
    high: Tensor
    points: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    gap: Tensor  # (B, *n): between two points it is at most so far from their chord

    @classmethod
    def of(cls, f: Activation, bend: Bend, x: Interval, low: Tensor, high: Tensor) -> _Grid:
        known = bend.curvature
        curvature = torch.full_like(low, known) if isinstance(known, float) else known(low, high)
        parts = 1 if known == 0.0 else PARTS  # piecewise linear: the ends and the kinks are enough
        step = (high - low) / parts
        points = [low + step * i for i in range(parts)] + [high]
        # A number as the network reads it.
        rounded = (
            (kink.to(x.dtype) if isinstance(kink, Tensor) else torch.full_like(x.lower, kink)).double()
            for kink in bend.kinks
        )
        points += [torch.minimum(torch.maximum(kink, low), high) for kink in rounded]
        gap = slightly_up(curvature * step * step) / 8
        return cls(f, x, low, high, tuple(points), tuple(f.fn(point) for point in points), gap)

    def closest(self) -> tuple[_PointwiseLine, _PointwiseLine]:
        """Return the lower and upper line that are closest in the middle, among a few slopes."""
        middle = (self.low + self.high) / 2
        above = below = None
        for lower, upper in self._supporting(list(_slopes(self.f, self.x, self.low, self.high))):
            above = upper if above is None else _closer(above, upper, middle, -1.0)
            below = lower if below is None else _closer(below, lower, middle, 1.0)
        if above is None or below is None:  # _slopes gives at least the chord
            raise BoundError("no slope to try")
        return below, above

    def at_end(self, end: Tensor) -> tuple[_PointwiseLine, _PointwiseLine]:
        """Return the lower and upper line that are closest at one end (B, *n) of the interval."""
        at, slopes = self.f.fn(end), list[Tensor]()
        for point, value in zip(self.points, self.values, strict=True):
            apart = point != end
            slopes.append(torch.where(apart, (value - at) / torch.where(apart, point - end, 1.0), torch.nan))
        steepest, flattest = torch.full_like(at, -torch.inf), torch.full_like(at, torch.inf)
        for slope in slopes:
            steepest, flattest = torch.fmax(steepest, slope), torch.fmin(flattest, slope)
        left = end == self.low
        under, over = torch.where(left, flattest, steepest), torch.where(left, steepest, flattest)
        (lower, _), (_, upper) = self._supporting([s.nan_to_num(0.0, 0.0, 0.0).to(self.x.dtype) for s in (under, over)])
        return lower, upper

    def _supporting(self, slopes: list[Tensor]) -> list[tuple[_PointwiseLine, _PointwiseLine]]:
        """Return the lines of given slopes below and above, as close as the grid allows."""
        tops = [torch.full_like(self.low, -torch.inf) for _ in slopes]
        bottoms = [torch.full_like(self.low, torch.inf) for _ in slopes]
        largest = torch.zeros_like(self.low)
        for point, value in zip(self.points, self.values, strict=True):
            largest = torch.maximum(largest, value.abs())
            for k, slope in enumerate(slopes):
                rest = value - slope.double() * point
                tops[k], bottoms[k] = torch.maximum(tops[k], rest), torch.minimum(bottoms[k], rest)
        found, size = [], largest_size(self.low, self.high)
        for slope, top, bottom in zip(slopes, tops, bottoms, strict=True):
            slack = self.gap + FUNCTION_ERROR * (largest + slope.double().abs() * size)
            found.append((_PointwiseLine(slope, bottom - slack), _PointwiseLine(slope, top + slack)))
        return found


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
