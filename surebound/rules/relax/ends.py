"""Passes over the ends of bounds with written-out gradients: a ReLU's upper line, and the tighter of two bounds.

Automatic differentiation of the same formulas makes a dozen passes over arrays of the size of an activation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.kernels import ends


class _Chord(torch.autograd.Function):
    """Ends l, u (B, *n) of a ReLU's input -> slope s and intercept t = -s l of the line above it.

    Where l < 0 < u: s = u / (u - l), so ds/du = -l / (u - l)^2, ds/dl = u / (u - l)^2, dt/du = (l / (u - l))^2 and
    dt/dl = -s^2. Elsewhere both are constant. Also, without gradients: the lower slope that leaves the smaller area,
    and where the sign is open.
    """

    @staticmethod
    def forward(ctx: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ctx.save_for_backward(lower, upper)
        found = ends.chord(lower, upper)
        if found is None:
            low, high = lower.clamp(max=0), upper.clamp(min=0)
            inverse = (high - low).reciprocal_()
            slope = high * inverse.masked_fill_(inverse.isinf(), 0.0)
            below = torch.where(upper > 0, lower + upper > 0, False).to(slope.dtype)
            found = slope, -slope * low, below, (lower < 0) & (upper > 0)
        ctx.mark_non_differentiable(*found[2:])
        return found

    @staticmethod
    def backward(ctx: Any, g_slope: Tensor, g_top: Tensor, *_: Tensor) -> Any:
        lower, upper = ctx.saved_tensors
        quick = ends.chord_backward(lower, upper, g_slope, g_top)
        if quick is not None:
            return quick
        unstable = (lower < 0) & (upper > 0)
        inverse = torch.where(unstable, upper - lower, 1.0).reciprocal_()
        slope, rest, per = upper * inverse, lower * inverse, g_slope * inverse
        g_lower = torch.addcmul(per * slope, g_top, slope.square(), value=-1.0)
        g_upper = torch.addcmul(-per * rest, g_top, rest.square())
        return torch.where(unstable, g_lower, 0.0), torch.where(unstable, g_upper, 0.0)


class _Within(torch.autograd.Function):
    """Known ends, centre and radius (B, *n) -> the tighter ends; what is not a number says nothing."""

    @staticmethod
    def forward(
        ctx: Any, lower: Tensor, upper: Tensor, center: Tensor, radius: Tensor
    ) -> tuple[Tensor, Tensor]:
        low, high = ends.within(lower, upper, center, radius) or (
            torch.fmax(lower, center - radius),
            torch.fmin(upper, center + radius),
        )
        ctx.save_for_backward(lower, upper, low, high)
        return low, high

    @staticmethod
    def backward(ctx: Any, g_low: Tensor, g_high: Tensor) -> Any:
        lower, upper, low, high = ctx.saved_tensors
        quick = ends.within_backward((lower, upper), (low, high), (g_low, g_high))
        if quick is not None:
            return quick
        own, g_own = (low != lower, high != upper), []
        for g, mine in zip((g_low, g_high), own, strict=True):
            g_own.append(torch.where(mine, g, 0.0))
        rest = g_low - g_own[0], g_high - g_own[1]
        return *rest, g_own[0] + g_own[1], g_own[1] - g_own[0]


def chord(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ``_Chord``; slope and intercept are differentiable."""
    result: tuple[Tensor, Tensor, Tensor, Tensor] = _Chord.apply(lower, upper)  # type: ignore[no-untyped-call]
    return result


def within(known: Interval, center: Tensor, radius: Tensor) -> Interval:
    """Both ``known`` and centre -+ radius hold; differentiable in all of them."""
    return Interval(*_Within.apply(known.lower, known.upper, center, radius))  # type: ignore[no-untyped-call]
