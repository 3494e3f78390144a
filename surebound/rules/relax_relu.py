"""Functions with one bend at 0 (ReLU, LeakyReLU, |x|) between lines: exact where stable, a chord above elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import Soundness, tiny
from surebound.rules.registry import Context
from surebound.rules.relax_lines import Lines, lines


def relu_lines(ctx: Context, x: Interval) -> Lines:
    """x (B, ...): exact in floating point."""
    return hinge_lines(ctx, x, 0.0, 1.0)


def abs_lines(ctx: Context, x: Interval) -> Lines:
    """|x|: exact in floating point."""
    return hinge_lines(ctx, x, -1.0, 1.0)


def leaky_lines(ctx: Context, x: Interval, slope: float = 0.01) -> Lines | None:
    """slope x below 0: one rounding, and one of the slope. Above slope 1 it is concave: left to its breakpoint."""
    return hinge_lines(ctx, x, float(slope), 1.0, rounded=True) if slope < 1 else None


def hinge_lines(ctx: Context, x: Interval, left: float, right: float, *, rounded: bool = False) -> Lines:
    """max(left x, right x) with left < right. Its lower slope is adaptive and free in [left, right].

    The upper slope may be any number: what makes the line sound is its intercept, computed from the slope as rounded
    so that the line is above at both ends. So no guard in the denominator is needed.
    """
    low, high = x.lower.clamp(max=0), x.upper.clamp(min=0)
    width = high - low
    # Stable entries come out as ``left`` and ``right``; a point at 0 has width 0.
    chord = (right * high - left * low) / torch.where(width == 0, torch.ones_like(width), width)
    if ctx.soundness is not Soundness.NONE:
        chord = chord.nan_to_num(right).clamp(left, right)  # an infinite side
    chord = torch.where(high == 0, left, torch.where(low == 0, right, chord))
    lower = torch.where((high + low > 0) | ((low == 0) & (high > 0)), right, left).to(chord.dtype)
    free = (low < 0) & (high > 0)
    error = _rounding(ctx, left * low) if rounded else torch.zeros_like(low, dtype=wide_dtype(ctx, low))
    top = _intercept(ctx, chord, low, high, left, right) + error
    return lines(ctx, (x,), (lower,), -error, (chord,), top, free, (left, right))


def wide_dtype(ctx: Context, like: Tensor) -> torch.dtype:
    """float64 where rounding matters."""
    return like.dtype if ctx.soundness is Soundness.NONE else torch.float64


def _rounding(ctx: Context, value: Tensor) -> Tensor:
    if ctx.soundness is Soundness.NONE:
        return torch.zeros_like(value)
    info = torch.finfo(value.dtype)
    return value.double().abs() * (3 * info.eps) + 8 * tiny(value.dtype)


def _intercept(ctx: Context, s: Tensor, low: Tensor, high: Tensor, left: float, right: float) -> Tensor:
    """The least t with s low + t >= left low and s high + t >= right high; (B, ...)."""
    if ctx.soundness is Soundness.NONE:
        return (left - s) * low
    wide = s.double()
    # Differences of a float32 slope and a number are exact to the last place of float64; 0 times infinity is 0.
    at_low = torch.where(wide == left, torch.zeros_like(wide), (left - wide) * low.double())
    at_high = torch.where(wide == right, torch.zeros_like(wide), (right - wide) * high.double())
    return torch.maximum(at_low, at_high)  # float64's rounding is paid with that of the dot product
