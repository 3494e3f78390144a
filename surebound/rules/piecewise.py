"""Piecewise linear functions: LeakyReLU, PReLU, hard sigmoid, absolute value, threshold."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules.activation import elementwise_interval, register_activation
from surebound.rules.facts import Activation, Pieces, Shape
from surebound.rules.registry import Context
from surebound.rules.relax.lines import Lines
from surebound.rules.relax.pointwise import Bend, function_lines, pointwise_lines
from surebound.rules.relax.relu import abs_lines, leaky_lines, relu_lines

_INF = math.inf


def _leaky(slope: float = 0.01) -> Activation:
    """Return the facts of LeakyReLU: one rounding, and one of the slope itself."""
    return Activation(
        lambda x: F.leaky_relu(x, slope),
        increasing=slope >= 0,
        ulps=2,
        underflow=2 + abs(slope),
        shape=Shape.CONVEX if slope <= 1 else Shape.CONCAVE,
        valley=(0.0, 0.0) if slope < 0 else None,
        pieces=lambda: ((-_INF, slope, 0.0), (0.0, 1.0, 0.0)),
        derivative=lambda x: torch.where(x > 0, x.new_tensor(1.0), x.new_tensor(slope)),
    )


_LEAKY = Activation(F.leaky_relu, increasing=False, ulps=2, specialise=lambda slope=0.01: _leaky(float(slope)))


def _lines_of(facts: Activation, ctx: Context, x: Interval, *args: Any) -> Lines | None:
    """Relax by the facts alone, for parameters without closer lines."""
    return pointwise_lines(facts, partial(elementwise_interval, facts), None, ctx, x, *args)


def _leaky_lines(ctx: Context, x: Interval, slope: float = 0.01) -> Lines | None:
    return leaky_lines(ctx, x, slope) or _lines_of(_LEAKY, ctx, x, slope)


register_activation("aten.leaky_relu.default", _LEAKY, relax=_leaky_lines)


def _prelu(weight: Tensor) -> Activation:
    """Return the facts of LeakyReLU with a slope per channel (axis 1)."""
    if weight.numel() == 1:
        slope = float(weight.detach())
        return dataclasses.replace(_leaky(slope), fn=lambda x: torch.prelu(x, weight))
    slopes = weight.detach()
    return Activation(
        lambda x: torch.prelu(x, weight),
        increasing=bool((slopes >= 0).all()),
        ulps=2,
        underflow=2 + float(slopes.abs().max()),
        # The lower end is the least of both ends and, with 0 inside, 0: right for slopes of either sign.
        valley=(0.0, 0.0),
    )


_PRELU = Activation(torch.prelu, increasing=False, ulps=2, specialise=_prelu)


def _prelu_lines(ctx: Context, x: Interval, weight: Tensor) -> Lines | None:
    """Relax PReLU of x (B, C, ...): a constant slope per channel below 0, or one for all: then LeakyReLU."""
    if isinstance(weight, Interval):
        return None
    if ctx.soundness is Soundness.NONE and torch.is_grad_enabled() and weight.requires_grad:
        return None  # slopes as numbers would have no gradient; the interval bounds have it
    if weight.numel() == 1:
        return leaky_lines(ctx, x, float(weight.detach())) or _lines_of(_PRELU, ctx, x, weight)
    slopes = weight.detach().double()
    spread = slopes.reshape(1, -1, *([1] * (len(x.shape) - 2)))
    f = Activation(
        lambda v: torch.prelu(v, slopes),
        ulps=2,  # the product, and the weight where it was rounded
        underflow=2 + float(slopes.abs().max()),
        derivative=lambda v: torch.where(v > 0, torch.ones_like(v), spread),
    )
    return function_lines(ctx, f, Bend(0.0, (0.0,)), x, elementwise_interval(_PRELU, ctx, x, weight))


register_activation("aten.prelu.default", _PRELU, relax=_prelu_lines)


register_activation(
    "aten.hardsigmoid.default",
    Activation(
        F.hardsigmoid,
        ulps=2,
        absolute=1,  # for x / 6 + 1 / 2, which some libraries compute
        pieces=lambda: ((-_INF, 0.0, 0.0), (-3.0, 1 / 6, 0.5), (3.0, 0.0, 1.0)),
        derivative=lambda x: (x.abs() < 3).to(x.dtype) / 6,
        range=(0.0, 1.0),
    ),
)
ABSOLUTE = Activation(
    torch.abs,
    increasing=False,
    shape=Shape.CONVEX,
    valley=(0.0, 0.0),
    pieces=lambda: ((-_INF, -1.0, 0.0), (0.0, 1.0, 0.0)),
    derivative=torch.sign,
    range=(0.0, _INF),
)
register_activation("aten.abs.default", ABSOLUTE, relax=abs_lines)


def _threshold(ctx: Context, x: Interval, threshold: float, value: float) -> Interval:
    """Bound x where x > threshold, else ``value``: it steps at the threshold, up or down."""
    low, high = x.lower, x.upper
    below, above = ~(low > threshold), ~(high <= threshold)  # may be; both True for NaN
    nothing, constant = torch.full_like(low, _INF), torch.full_like(low, value)
    # The values above the threshold start at the threshold itself, or at the lower end.
    start = torch.maximum(low, torch.full_like(low, threshold))
    lower = torch.minimum(torch.where(below, constant, nothing), torch.where(above, start, nothing))
    upper = torch.maximum(torch.where(below, constant, -nothing), torch.where(above, high, -nothing))
    return Interval(lower, upper)


def _threshold_pieces(value: float) -> Pieces:
    """Return the pieces where the value below the threshold is the threshold itself: continuous."""
    return ((-_INF, 0.0, value), (value, 1.0, 0.0))


_THRESHOLD = Activation(
    F.threshold,
    increasing=False,
    specialise=lambda threshold, value: Activation(
        lambda x: F.threshold(x, threshold, value),
        increasing=value <= threshold,
        pieces=partial(_threshold_pieces, value) if value == threshold else None,
    ),
)


def _threshold_lines(ctx: Context, x: Interval, threshold: float, value: float) -> Lines | None:
    """Relax the bend where threshold and value are equal; elsewhere it is a step, which has no line."""
    if threshold != value:
        return None
    if value == 0:
        return relu_lines(ctx, x)
    return pointwise_lines(_THRESHOLD, _threshold, None, ctx, x, threshold, value)


register_activation("aten.threshold.default", _THRESHOLD, interval=_threshold, relax=_threshold_lines)
