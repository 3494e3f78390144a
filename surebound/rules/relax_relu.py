"""ReLU between lines: exact where stable, a triangle's hypotenuse above and any slope in [0, 1] below."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules.registry import Context
from surebound.rules.relax_lines import Lines, lines


def relu_lines(ctx: Context, x: Interval) -> Lines:
    """x (B, ...). The lower slope is adaptive (1 where the positive side is the larger) and free in [0, 1].

    The upper slope may be any number: what makes the line sound is its intercept, computed from the slope as
    rounded so that the line is above at both ends. So no guard in the denominator is needed. ReLU itself is
    exact in floating point.
    """
    low, high = x.lower.clamp(max=0), x.upper.clamp(min=0)
    width = high - low
    # Stable entries come out as 1 and 0; a point at 0 has width 0; an infinite side leaves 0 / inf or nan.
    slope = high / torch.where(width == 0, torch.ones_like(width), width)
    if ctx.soundness is not Soundness.NONE:
        slope = slope.nan_to_num(1.0).clamp(0.0, 1.0)
    lower = (high + low > 0).to(slope.dtype)  # stable entries: 1 and 0 again
    free = (low < 0) & (high > 0)
    zero = torch.zeros_like(low, dtype=_wide(ctx, low))
    return lines(ctx, (x,), (lower,), zero, (slope,), _intercept(ctx, slope, low, high), free)


def _wide(ctx: Context, like: Tensor) -> torch.dtype:
    return like.dtype if ctx.soundness is Soundness.NONE else torch.float64


def _intercept(ctx: Context, slope: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The least t with slope * low + t >= 0 and slope * high + t >= high; (B, ...)."""
    if ctx.soundness is Soundness.NONE:
        return -slope * low
    s, low64, high64 = slope.double(), low.double(), high.double()
    at_low = torch.where(s == 0, torch.zeros_like(s), -s * low64)
    at_high = torch.where(s == 1, torch.zeros_like(s), (1 - s) * high64)
    return torch.maximum(at_low, at_high)  # float64's rounding is paid with that of the dot product
