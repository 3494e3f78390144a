"""Piecewise linear functions: LeakyReLU, PReLU, clamps, hard sigmoid, absolute value, threshold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.interval import Interval
from surebound.rules.activation import register_activation
from surebound.rules.facts import Activation, Pieces, Shape
from surebound.rules.registry import Context, Rule, register

_INF = math.inf


def _leaky(slope: float = 0.01) -> Activation:
    """x above 0, slope x below; one rounding, and one of the slope itself."""
    return Activation(
        lambda x: F.leaky_relu(x, slope),
        increasing=slope >= 0,
        ulps=2,
        underflow=2 + abs(slope),
        shape=Shape.CONVEX if slope <= 1 else Shape.CONCAVE,
        valley=(0.0, 0.0) if slope < 0 else None,
        pieces=lambda: ((-_INF, slope, 0.0), (0.0, 1.0, 0.0)),
        derivative=lambda x: torch.where(x > 0, 1.0, slope).to(x.dtype),
    )


register_activation(
    "aten.leaky_relu.default",
    Activation(F.leaky_relu, increasing=False, ulps=2, specialise=lambda slope=0.01: _leaky(float(slope))),
)


def _prelu(weight: Tensor) -> Activation:
    """LeakyReLU with a slope per channel (axis 1)."""
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


register_activation(
    "aten.prelu.default", Activation(torch.prelu, increasing=False, ulps=2, specialise=_prelu)
)


def _between(fn: Callable[[Tensor], Tensor], low: float | None, high: float | None) -> Activation:
    """The identity, kept between two numbers: exact. With low > high it is the constant high."""
    bottom, top = -_INF if low is None else float(low), _INF if high is None else float(high)
    if bottom > top:
        bottom = top
    pieces: Pieces = ((-_INF, 0.0, bottom), (bottom, 1.0, 0.0), (top, 0.0, top))
    kept = tuple(p for p in pieces if math.isfinite(p[2]) and p[0] < _INF)
    if bottom == top:
        kept = ((-_INF, 0.0, top),)
    elif bottom == -_INF:
        kept = ((-_INF, 1.0, 0.0), *kept[1:])
    return Activation(
        fn,
        shape=Shape.CONVEX if top == _INF else Shape.CONCAVE if bottom == -_INF else Shape.OTHER,
        pieces=lambda: kept,
        derivative=lambda x: ((x > bottom) & (x < top)).to(x.dtype),
        range=(bottom, top),
    )


def _hardtanh(low: float = -1.0, high: float = 1.0) -> Activation:
    return _between(lambda x: F.hardtanh(x, low, high), low, high)


def _clamp(min: float | None = None, max: float | None = None) -> Activation:
    return _between(lambda x: torch.clamp(x, min, max), min, max)


register_activation("aten.hardtanh.default", Activation(F.hardtanh, specialise=_hardtanh))
register_activation("aten.relu6.default", _between(F.relu6, 0.0, 6.0))
register_activation("aten.clamp.default", Activation(torch.clamp, specialise=_clamp))
register_activation("aten.clip.default", Activation(torch.clamp, specialise=_clamp))
register_activation("aten.clamp_min.default", Activation(torch.clamp_min, specialise=_clamp))
register_activation(
    "aten.clamp_max.default", Activation(torch.clamp_max, specialise=lambda max: _clamp(max=max))
)

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
register_activation("aten.abs.default", ABSOLUTE)


def _sign(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), x, torch.sign(x))  # torch.sign(NaN) is 0, which would look like knowledge


register_activation("aten.sign.default", Activation(_sign, range=(-1.0, 1.0)), note="steps at 0")
register_activation("aten.sgn.default", Activation(_sign, range=(-1.0, 1.0)), note="steps at 0")


def _threshold(ctx: Context, x: Interval, threshold: float, value: float) -> Interval:
    """x where x > threshold, else ``value``: it steps at the threshold, up or down."""
    low, high = x.lower, x.upper
    below, above = ~(low > threshold), ~(high <= threshold)  # may be; both True for NaN
    nothing, constant = torch.full_like(low, _INF), torch.full_like(low, value)
    # The values above the threshold start at the threshold itself, or at the lower end.
    start = torch.maximum(low, torch.full_like(low, threshold))
    lower = torch.minimum(torch.where(below, constant, nothing), torch.where(above, start, nothing))
    upper = torch.maximum(torch.where(below, constant, -nothing), torch.where(above, high, -nothing))
    return Interval(lower, upper)


register(
    Rule(
        op="aten.threshold.default",
        family="activation",
        interval=_threshold,
        activation=Activation(
            F.threshold,
            increasing=False,
            specialise=lambda threshold, value: Activation(
                lambda x: F.threshold(x, threshold, value),
                increasing=value <= threshold,
                pieces=partial(_threshold_pieces, value) if value == threshold else None,
            ),
        ),
    )
)


def _threshold_pieces(value: float) -> Pieces:
    """The threshold's own value below it: continuous."""
    return ((-_INF, 0.0, value), (value, 1.0, 0.0))


def _hull_of_bounds(ctx: Context, x: Any, low: Any = None, high: Any = None) -> Interval:
    """clamp with tensors, constant or varying: max, then min, of ends."""
    lower, upper = _ends(x)
    if low is not None:
        lower, upper = (torch.maximum(a, b) for a, b in zip((lower, upper), _ends(low), strict=True))
    if high is not None:
        lower, upper = (torch.minimum(a, b) for a, b in zip((lower, upper), _ends(high), strict=True))
    return Interval(lower, upper)


def _ends(value: Interval | Tensor) -> tuple[Tensor, Tensor]:
    return (value.lower, value.upper) if isinstance(value, Interval) else (value, value)


for _op in ("aten.clamp.Tensor", "aten.clip.Tensor", "aten.clamp_min.Tensor"):
    register(Rule(op=_op, family="activation", interval=_hull_of_bounds))
register(
    Rule(
        op="aten.clamp_max.Tensor",
        family="activation",
        interval=lambda ctx, x, high: _hull_of_bounds(ctx, x, None, high),
    )
)
