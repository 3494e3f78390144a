"""Functions with one bend at 0 (ReLU, LeakyReLU, |x|) between lines: exact where stable, a chord above elsewhere."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.kernels import wide
from surebound.numerics import Soundness, covering, dot_rounding, per_example, tiny, unit_roundoff
from surebound.rules.registry import Context
from surebound.rules.relax.ends import chord
from surebound.rules.relax.lines import Lines, lines


def relu_lines(ctx: Context, x: Interval) -> Lines:
    """x (B, ...): exact in floating point."""
    trains = torch.is_grad_enabled() and (x.lower.requires_grad or x.upper.requires_grad)
    if ctx.soundness is Soundness.NONE and trains:
        return _training_lines(x)
    return _quick_lines(ctx, x) or hinge_lines(ctx, x, 0.0, 1.0)


def _quick_lines(ctx: Context, x: Interval) -> Lines | None:
    """The numbers of ``hinge_lines`` in one compiled pass, if that is possible."""
    sound = ctx.soundness is not Soundness.NONE
    under = _underflow(x) if sound else 0.0
    found = wide.relu_lines(x.lower, x.upper, sound, tiny(x.dtype), _outwards(x), 4 * tiny(x.dtype), under)
    if found is None:
        return None
    chord, lower, top, free, absolute = found
    owes = 2 * unit_roundoff(x.dtype) if sound else 0.0
    return Lines((x.shape,), (lower,), (chord,), None, top, absolute, free, owes=owes)


def _outwards(x: Interval) -> float:
    """For two roundings of the intercept, and the dot product with the coefficients."""
    return covering(4 * unit_roundoff(x.dtype) + dot_rounding(x.shape, x.dtype))


def _underflow(x: Interval) -> float:
    """Of coefficients and offset, relative to 1 + the largest |bound| of an example."""
    return 16.0 * math.prod(x.shape[1:]) * tiny(x.dtype)


def _training_lines(x: Interval) -> Lines:
    """The same lines with written-out gradients."""
    slope, top, lower, free = chord(x.lower, x.upper)
    absolute = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    return Lines((x.shape,), (lower,), (slope,), None, top, absolute, free)


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
    top_left = high if (left, right) == (0.0, 1.0) else right * high - left * low
    width = high - low
    if ctx.soundness is Soundness.NONE:
        chord = top_left / torch.where(width == 0, torch.ones_like(width), width)
    else:  # a width below the normal numbers, or an infinite one, gives a slope that is as good as any other
        chord = (top_left / width.clamp(min=tiny(x.dtype))).nan_to_num_(right).clamp_(left, right)
    if rounded:  # stable entries come out as ``left`` and ``right`` only if these are 0 or +-1
        chord = torch.where(high == 0, left, torch.where(low == 0, right, chord))
    lower = torch.where(high + low > 0, right, left).to(chord.dtype)
    free = (low < 0) & (high > 0)
    top = _intercept(ctx, chord, low, high, left, right)
    if rounded:
        error = _rounding(ctx, left * low)
        return lines(ctx, (x,), (lower,), -error, (chord,), top.to(error.dtype) + error, free, (left, right))
    absolute, owes = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device), 0.0
    if ctx.soundness is not Soundness.NONE:
        top = top * _outwards(x) + 4 * tiny(x.dtype)
        largest = per_example(x.magnitude).double() if x.shape.numel() else absolute
        absolute = _underflow(x) * (1 + largest)
        owes = 2 * unit_roundoff(x.dtype)
    return Lines((x.shape,), (lower,), (chord,), None, top, absolute, free, (left, right), owes)


def _rounding(ctx: Context, value: Tensor) -> Tensor:
    if ctx.soundness is Soundness.NONE:
        return torch.zeros_like(value)
    return value.double().abs() * (6 * unit_roundoff(value.dtype)) + 8 * tiny(value.dtype)


def _intercept(ctx: Context, s: Tensor, low: Tensor, high: Tensor, left: float, right: float) -> Tensor:
    """The least t with s low + t >= left low and s high + t >= right high, but for two roundings; (B, ...)."""
    at_low = (left - s) * low
    if ctx.soundness is Soundness.NONE:
        return at_low
    at_high = (right - s) * high
    if bool((at_low + at_high).isfinite().all()):
        return torch.maximum(at_low, at_high)
    # 0 times infinity is 0 here: a side that the line meets. NaN stays NaN.
    at_low = torch.where(s == left, torch.zeros_like(s), at_low)
    return torch.maximum(at_low, torch.where(s == right, torch.zeros_like(s), at_high))
