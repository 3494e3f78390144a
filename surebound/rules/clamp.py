"""Clamps: the identity, kept between two numbers or two tensors. Exact: nothing is rounded."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.interval import Interval
from surebound.rules.activation import elementwise_interval, register_activation
from surebound.rules.facts import Activation, Pieces, Shape
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.lines import Lines
from surebound.rules.relax.pairs import joint_shape, maximum_lines, minimum_lines
from surebound.rules.relax.pointwise import Bend, function_lines, pointwise_lines
from surebound.rules.relax.relu import relu_lines
from surebound.rules.selection import ends_of

_INF = math.inf


def _between(fn: Callable[[Tensor], Tensor], low: float | None, high: float | None) -> Activation:
    """Return the facts of the identity kept between two numbers: exact. With low > high it is the constant high."""
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


CLAMP = Activation(torch.clamp, specialise=_clamp)


def _clamp_lines(ctx: Context, x: Interval, min: Any = None, max: Any = None) -> Lines | None:
    """Relax a clamp; from below at 0 it is ReLU under another name."""
    if min == 0 and max is None and x.dtype != torch.bool:
        return relu_lines(ctx, x)
    return pointwise_lines(CLAMP, partial(elementwise_interval, CLAMP), None, ctx, x, min, max)


register_activation("aten.hardtanh.default", Activation(F.hardtanh, specialise=_hardtanh))
register_activation("aten.relu6.default", _between(F.relu6, 0.0, 6.0))
for _op in ("clamp", "clip", "clamp_min"):
    register_activation(f"aten.{_op}.default", CLAMP, relax=_clamp_lines)
register_activation("aten.clamp_max.default", Activation(torch.clamp_max, specialise=lambda max: _clamp(max=max)))


def _hull_of_bounds(ctx: Context, x: Any, low: Any = None, high: Any = None) -> Interval:
    """Bound a clamp with tensors, constant or varying: max, then min, of ends."""
    lower, upper = ends_of(x)
    if low is not None:
        lower, upper = (torch.maximum(a, b) for a, b in zip((lower, upper), ends_of(low), strict=True))
    if high is not None:
        lower, upper = (torch.minimum(a, b) for a, b in zip((lower, upper), ends_of(high), strict=True))
    return Interval(lower, upper)


def _tensor_lines(ctx: Context, x: Any, min: Any = None, max: Any = None) -> Lines | None:
    """Relax min(max(x, low), high) with tensors: two bounds must be constants, one may vary."""
    if max is None or min is None:
        return maximum_lines(ctx, x, min) if max is None else minimum_lines(ctx, x, max)
    if not isinstance(x, Interval) or isinstance(min, Interval) or isinstance(max, Interval) or x.dtype == torch.bool:
        return None
    if joint_shape(x, min, max) != x.shape:
        return None
    low, high = min.detach().double(), max.detach().double()
    f = Activation(lambda v: torch.clamp(v, low, high), derivative=lambda v: ((v > low) & (v < high)).to(v.dtype))
    return function_lines(ctx, f, Bend(0.0, (low, high)), x, _hull_of_bounds(ctx, x, min, max))


for _op, _relax in (("clamp", _tensor_lines), ("clip", _tensor_lines), ("clamp_min", maximum_lines)):
    register(Rule(f"aten.{_op}.Tensor", "activation", _hull_of_bounds, relax=_relax))
register(
    Rule(
        "aten.clamp_max.Tensor",
        "activation",
        lambda ctx, x, high: _hull_of_bounds(ctx, x, None, high),
        relax=minimum_lines,
    )
)
