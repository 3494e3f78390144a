"""Functions with one bend at 0 (ReLU, LeakyReLU, |x|) between lines: exact where stable, a chord above elsewhere."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.kernels.ends import Payment, hinge
from surebound.numerics import Soundness, covering, dot_rounding, tiny, unit_roundoff
from surebound.rules.registry import Context
from surebound.rules.relax.ends import relu_chord
from surebound.rules.relax.lines import Lines, lines


def relu_lines(ctx: Context, x: Interval) -> Lines:
    """Relax max(x, 0) between bounds x (B, ...): exact in floating point."""
    return hinge_lines(ctx, x, 0.0, 1.0)


def abs_lines(ctx: Context, x: Interval) -> Lines:
    """Relax |x|: exact in floating point."""
    return hinge_lines(ctx, x, -1.0, 1.0)


def leaky_lines(ctx: Context, x: Interval, slope: float = 0.01) -> Lines | None:
    """Relax LeakyReLU: one rounding, and one of the slope. Above slope 1 it is concave: left to its breakpoint."""
    return hinge_lines(ctx, x, float(slope), 1.0, rounded=True) if slope < 1 else None


def hinge_lines(ctx: Context, x: Interval, left: float, right: float, *, rounded: bool = False) -> Lines:
    """Relax max(left x, right x), left < right. Its lower slope is adaptive and free in [left, right].

    The upper slope may be any number: what makes the line sound is its intercept, computed from the slope as rounded
    so that the line is above at both ends. So no guard in the denominator is needed.
    """
    sound = ctx.soundness is not Soundness.NONE
    trains = torch.is_grad_enabled() and (x.lower.requires_grad or x.upper.requires_grad)
    if trains and not sound and (left, right) == (0.0, 1.0):
        chord, lower, top, free, absolute = relu_chord(x.lower, x.upper)
    else:
        pay = _rounding_bounds(x, rounded) if sound else None
        chord, lower, top, free, absolute = hinge(x.lower, x.upper, left, right, pay, rounded)
    if rounded:
        error = _rounding(ctx, left * x.lower.clamp(max=0))
        return lines(ctx, (x,), (lower,), -error, (chord,), top.to(error.dtype) + error, free, (left, right))
    owes = 2 * unit_roundoff(x.dtype) if sound else 0.0
    return Lines((x.shape,), (lower,), (chord,), None, top, absolute, free, (left, right), owes)


def _rounding_bounds(x: Interval, rounded: bool) -> Payment:
    """Bound two roundings of the intercept, the dot product with the coefficients, and underflow (0 if ``rounded``)."""
    if rounded:  # ``lines`` adds them
        return Payment(tiny(x.dtype), 1.0, 0.0, 0.0)
    outwards = covering(4 * unit_roundoff(x.dtype) + dot_rounding(x.shape, x.dtype))
    under = 16.0 * math.prod(x.shape[1:]) * tiny(x.dtype)
    return Payment(tiny(x.dtype), outwards, 4 * tiny(x.dtype), under)


def _rounding(ctx: Context, value: Tensor) -> Tensor:
    if ctx.soundness is Soundness.NONE:
        return torch.zeros_like(value)
    return value.double().abs() * (6 * unit_roundoff(value.dtype)) + 8 * tiny(value.dtype)
