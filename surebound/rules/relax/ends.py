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
    """Ends (B, *n) of a ReLU's input -> its lines, of which slope and intercept of the upper one have gradients."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, upper: Tensor) -> ends.Hinge:
        ctx.save_for_backward(lower, upper)
        found = ends.hinge(lower, upper, 0.0, 1.0, None)
        ctx.mark_non_differentiable(found[1], *found[3:])
        return found

    @staticmethod
    def backward(ctx: Any, g_slope: Tensor, _: Tensor, g_top: Tensor, *__: Tensor) -> Any:
        lower, upper = ctx.saved_tensors
        return ends.chord_backward(lower, upper, g_slope, g_top)


class _Within(torch.autograd.Function):
    """Known ends, centre and radius (B, *n) -> the tighter ends."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, upper: Tensor, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        low, high = ends.within(lower, upper, center, radius)
        ctx.save_for_backward(lower, upper, low, high)
        return low, high

    @staticmethod
    def backward(ctx: Any, g_low: Tensor, g_high: Tensor) -> Any:
        lower, upper, low, high = ctx.saved_tensors
        return ends.within_backward(lower, upper, low, high, g_low, g_high)


def relu_chord(lower: Tensor, upper: Tensor) -> ends.Hinge:
    """Relax a ReLU without rounding control (``ends.hinge``); slope and intercept of the chord are differentiable."""
    result: ends.Hinge = _Chord.apply(lower, upper)  # type: ignore[no-untyped-call]
    return result


def within(known: Interval, center: Tensor, radius: Tensor) -> Interval:
    """Intersect ``known`` with centre -+ radius; differentiable in all of them."""
    return Interval(*_Within.apply(known.lower, known.upper, center, radius))  # type: ignore[no-untyped-call]
