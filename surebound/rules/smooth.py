"""Smooth monotone functions: their ends are the exact hull.

``ulps`` are stated with a margin over PyTorch's libraries (1 to 2 ulps; tests/rules/test_accuracy.py), so that other
faithful libraries are covered too. ``absolute`` covers formulas that cancel, e.g. exp(x) - 1 instead of expm1(x).
``bend`` bounds |f''|, from calculus, rounded up.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import amply_up, unit_roundoff
from surebound.rules.activation import register_activation, widened
from surebound.rules.facts import Activation, Shape
from surebound.rules.registry import Context
from surebound.rules.relax.pointwise import Bend, largest_size

_INF = math.inf
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def _sigmoid_slope(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * torch.sigmoid(-x)


# onnxruntime's sigmoid is a rational function, good to 1.2 eps absolutely and 0 below -18; its tanh may exceed 1.
SIGMOID = Activation(
    torch.sigmoid, ulps=4, absolute=2, shape=Shape.S_SHAPED, derivative=_sigmoid_slope, range=(0.0, 1.0)
)
register_activation("aten.sigmoid.default", SIGMOID, bend=Bend(0.09623))  # 1 / (6 sqrt 3)
register_activation(
    "aten.tanh.default",
    Activation(
        torch.tanh,
        ulps=4,
        shape=Shape.S_SHAPED,
        derivative=lambda x: 1 - torch.tanh(x) ** 2,
        range=(-1.000001, 1.000001),
    ),
    bend=Bend(0.76981),  # 4 / (3 sqrt 3)
)
register_activation(
    "aten.erf.default",
    Activation(
        torch.erf,
        ulps=4,
        absolute=4,  # polynomial approximations of 1 - erf are in use that are good to 1.5e-7 absolutely
        shape=Shape.S_SHAPED,
        derivative=lambda x: torch.exp(-x * x) * (2 / math.sqrt(math.pi)),
        range=(-1.0, 1.0),
    ),
    bend=Bend(0.96789),  # sqrt(8 / (pi e)), at 1 / sqrt 2
)
register_activation(
    "aten.atan.default",
    Activation(
        torch.atan,
        ulps=4,
        shape=Shape.S_SHAPED,
        derivative=lambda x: 1 / (1 + x * x),
        range=(-1.5707964, 1.5707964),
    ),
    bend=Bend(0.64952),  # 3 sqrt 3 / 8
)
register_activation(
    "aten.asinh.default",
    Activation(torch.asinh, ulps=4, absolute=2, shape=Shape.S_SHAPED, derivative=lambda x: torch.rsqrt(1 + x * x)),
    bend=Bend(0.38491),  # 2 / (3 sqrt 3)
)
register_activation(
    "aten.sinh.default",
    Activation(torch.sinh, ulps=8, absolute=2, derivative=torch.cosh),
    bend=Bend(lambda low, high: torch.sinh(largest_size(low, high))),
)

register_activation(
    "aten.exp.default",
    Activation(torch.exp, ulps=4, shape=Shape.CONVEX, derivative=torch.exp, range=(0.0, _INF)),
)
register_activation(
    "aten.exp2.default",
    Activation(
        torch.exp2,
        ulps=4,
        shape=Shape.CONVEX,
        derivative=lambda x: torch.exp2(x) * math.log(2),
        range=(0.0, _INF),
    ),
)
register_activation(
    "aten.expm1.default",
    Activation(torch.expm1, ulps=4, absolute=2, shape=Shape.CONVEX, derivative=torch.exp, range=(-1.0, _INF)),
)
register_activation(
    "aten.log.default",
    Activation(torch.log, ulps=4, shape=Shape.CONCAVE, derivative=torch.reciprocal, domain=(0.0, _INF), steep=True),
)
register_activation(
    "aten.log1p.default",
    Activation(
        torch.log1p,
        ulps=4,
        absolute=2,  # for log(1 + x)
        shape=Shape.CONCAVE,
        derivative=lambda x: 1 / (1 + x),
        domain=(-1.0, _INF),
    ),
)
for _op, _base, _fn in (("log2", 2.0, torch.log2), ("log10", 10.0, torch.log10)):
    register_activation(
        f"aten.{_op}.default",
        Activation(
            _fn,
            ulps=4,
            shape=Shape.CONCAVE,
            derivative=lambda x, base=_base: 1 / (x * math.log(base)),
            domain=(0.0, _INF),
            steep=True,
        ),
    )
register_activation(
    "aten.sqrt.default",
    Activation(
        torch.sqrt,
        ulps=2,
        shape=Shape.CONCAVE,
        derivative=lambda x: 0.5 * torch.rsqrt(x),
        domain=(0.0, _INF),
        range=(0.0, _INF),
        steep=True,
    ),
)


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Activation:
    """Return the facts of log(1 + exp(beta x)) / beta, and x where beta x > threshold: at most ``jump`` below it."""
    exact = beta == 1.0  # else beta x is rounded: e^y |y| u <= u / 2 where y < 0
    return Activation(
        lambda x: F.softplus(x, beta, threshold),
        ulps=6,
        absolute=0.0 if exact else 1 / abs(beta),
        shape=Shape.CONVEX if beta > 0 else Shape.CONCAVE,
        derivative=lambda x: torch.sigmoid(beta * x),
        range=(0.0, _INF) if beta > 0 else (-_INF, _INF),
        jump=amply_up(math.log1p(math.exp(-threshold)) / abs(beta)),
    )


_SOFTPLUS = Activation(
    F.softplus, increasing=False, ulps=6, specialise=lambda beta=1, threshold=20: _softplus(beta, threshold)
)


def _softplus_interval(ctx: Context, x: Interval, beta: float = 1, threshold: float = 20) -> Interval:
    """Bound softplus by the ends and, where the threshold may be inside, both of its values there: it steps."""
    f = dataclasses.replace(_softplus(beta, threshold), jump=0.0)
    lower, upper = f.fn(x.lower), f.fn(x.upper)
    step = torch.full_like(lower, threshold / beta)
    near = 4 * unit_roundoff(x.dtype) * step.abs()  # beta x is rounded before it is compared
    inside = (x.lower - near <= step) & (step <= x.upper + near)
    smooth = torch.full_like(lower, (threshold + math.log1p(math.exp(-threshold))) / beta)
    lower = torch.where(inside, torch.minimum(lower, torch.minimum(step, smooth)), lower)
    upper = torch.where(inside, torch.maximum(upper, torch.maximum(step, smooth)), upper)
    return widened(ctx, f, lower, upper)


register_activation("aten.softplus.default", _SOFTPLUS, interval=_softplus_interval)
register_activation(
    "aten.log_sigmoid.default",
    Activation(F.logsigmoid, ulps=6, shape=Shape.CONCAVE, derivative=lambda x: torch.sigmoid(-x), range=(-_INF, 0.0)),
)


def _elu(alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Activation:
    """Return the facts of scale x above 0, scale alpha (exp(input_scale x) - 1) below."""
    below = scale * alpha * input_scale  # its slope at 0-
    return Activation(
        lambda x: torch.ops.aten.elu.default(x, alpha, scale, input_scale),
        increasing=scale >= 0 and below >= 0,
        ulps=6 if input_scale >= 0 else 1024,  # exp of a large rounded argument
        absolute=4 * abs(scale * alpha),  # exp(y) - 1 cancels, and y = input_scale x is rounded
        underflow=2 + abs(below) + abs(scale),
        shape=Shape.CONVEX if 0 <= below <= scale and alpha * scale >= 0 else Shape.OTHER,
        derivative=lambda x: torch.where(x > 0, scale, below * torch.exp(input_scale * x.clamp(max=0))),
        valley=(0.0, 0.0) if scale >= 0 > below else None,
        peak=(0.0, 0.0) if scale < 0 <= below else None,
    )


def _elu_curvature(low: Tensor, high: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """Bound |f''|: scale alpha input_scale^2 exp(input_scale x) below 0; nothing above."""
    top = torch.maximum(input_scale * low, input_scale * high.clamp(max=0))
    return abs(scale * alpha) * input_scale**2 * top.exp()


register_activation(
    "aten.elu.default",
    Activation(F.elu, increasing=False, specialise=_elu),
    bend=Bend(_elu_curvature, kinks=(0.0,)),
)


def _selu() -> Activation:
    facts = _elu(_SELU_ALPHA, _SELU_SCALE)
    return Activation(
        F.selu,
        ulps=facts.ulps,
        absolute=facts.absolute,
        underflow=facts.underflow,
        derivative=facts.derivative,
    )


# The largest |f''| is scale alpha, at 0-.
register_activation("aten.selu.default", _selu(), bend=Bend(1.75810, kinks=(0.0,)))


def _celu(alpha: float = 1.0) -> Activation:
    """Return the facts of x above 0, alpha (exp(x / alpha) - 1) below: increasing; for alpha < 0 it falls like exp."""
    return Activation(
        lambda x: F.celu(x, alpha),
        ulps=6 if alpha > 0 else 1024,  # exp of a large rounded argument
        absolute=4 * abs(alpha),
        underflow=4,
        shape=Shape.CONVEX if alpha > 0 else Shape.CONCAVE,
        derivative=lambda x: torch.exp(x.clamp(max=0) / alpha),
    )


register_activation(
    "aten.celu.default", Activation(F.celu, specialise=lambda alpha=1.0: _celu(float(alpha)), ulps=1024)
)
register_activation(
    "aten.erfc.default",
    Activation(
        torch.erfc,
        increasing=False,
        ulps=4,
        absolute=4,  # for 1 - erf(x)
        derivative=lambda x: torch.exp(-x * x) * (-2 / math.sqrt(math.pi)),
        range=(0.0, 2.0),
    ),
    bend=Bend(0.96789),
)
