"""Functions that are not monotone: one valley (GELU, SiLU, Mish, hard swish, cosh), or waves (sin, cos).

Positions and values of the valleys are the roots of the derivatives, computed with 50 digits. ``bend`` bounds |f''|,
from calculus, rounded up.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import FEW_ROUNDINGS
from surebound.rules.activation import register_activation, widened
from surebound.rules.facts import Activation, Shape
from surebound.rules.registry import Context
from surebound.rules.relax.pointwise import Bend


def _gelu(approximate: str = "none") -> Activation:
    """Return the facts of x Phi(x) or its tanh approximation: both compute 1 + s, which cancels for negative x."""
    if approximate == "tanh":
        return Activation(
            lambda x: F.gelu(x, approximate="tanh"),
            increasing=False,
            ulps=8,
            absolute=8,
            valley=(-0.7524614220710162585, -0.1700407505712540506),
        )
    return Activation(
        F.gelu,
        increasing=False,
        ulps=8,
        absolute=8,  # |x| / 2 times the error of erf, up to where it saturates
        valley=(-0.7517915246935644575, -0.1699712074799036617),
        derivative=_gelu_slope,
    )


def _gelu_slope(x: Tensor) -> Tensor:
    normal = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * normal


register_activation(
    "aten.gelu.default",
    Activation(F.gelu, increasing=False, specialise=_gelu),
    bend=Bend(0.79789),  # sqrt(2 / pi), at 0, for both formulas
)


def _silu_slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s + x * s * torch.sigmoid(-x)


# exp(-x) overflows for x < -709 (float64) while x times a subnormal number is not yet that small.
register_activation(
    "aten.silu.default",
    Activation(
        F.silu,
        increasing=False,
        ulps=8,
        absolute=40,  # |x| times the error of a sigmoid that is good to 2 eps absolutely, and 0 below -18
        underflow=1024,
        valley=(-1.278464542761073795, -0.278464542761073795),
        derivative=_silu_slope,
    ),
    bend=Bend(0.50001),  # 1 / 2, at 0
)


def _mish_slope(x: Tensor) -> Tensor:
    t = torch.tanh(F.softplus(x))
    return t + x * (1 - t * t) * torch.sigmoid(x)


register_activation(
    "aten.mish.default",
    Activation(
        F.mish,
        increasing=False,
        ulps=12,
        underflow=1024,
        valley=(-1.192431214515495212, -0.3088434130172504066),
        derivative=_mish_slope,
    ),
    bend=Bend(0.64421),  # at -0.0879
)
register_activation(
    "aten.hardswish.default",
    Activation(
        F.hardswish,
        increasing=False,
        ulps=6,
        absolute=3,  # x (x / 6 + 1 / 2) cancels near -3
        valley=(-1.5, -0.375),
        derivative=lambda x: torch.where(x.abs() < 3, x / 3 + 0.5, (x > 0).to(x.dtype)),
    ),
    bend=Bend(0.33334, kinks=(-3.0, 3.0)),
)
register_activation(
    "aten.cosh.default",
    Activation(torch.cosh, increasing=False, ulps=8, shape=Shape.CONVEX, valley=(0.0, 1.0), derivative=torch.sinh),
)


def _holds(x: Interval, offset: float) -> Tensor:
    """May [lower, upper] hold offset + 2 pi k for some integer k? In float64, with its rounding on the safe side."""
    first, last = ((end.double() - offset) / math.tau for end in (x.lower, x.upper))
    slack_first, slack_last = (FEW_ROUNDINGS * (1 + end.abs()) for end in (first, last))
    return torch.floor(last + slack_last) >= torch.ceil(first - slack_first)


def _wave(facts: Activation, peak: float, ctx: Context, x: Interval) -> Interval:
    """Bound sin or cos: 1 if a peak is inside, -1 if a valley is, else the values at the ends."""
    at_lower, at_upper = facts.fn(x.lower), facts.fn(x.upper)
    one = torch.ones_like(at_lower)
    upper = torch.where(_holds(x, peak), one, torch.maximum(at_lower, at_upper))
    lower = torch.where(_holds(x, peak - math.pi), -one, torch.minimum(at_lower, at_upper))
    # Of an infinite argument it is NaN.
    odd = (at_lower + at_upper).isnan()
    return widened(ctx, facts, lower.masked_fill(odd, math.nan), upper.masked_fill(odd, math.nan))


for _op, _fn, _peak, _slope in (
    ("sin", torch.sin, math.pi / 2, torch.cos),
    ("cos", torch.cos, 0.0, lambda x: -torch.sin(x)),
):
    # Libraries that reduce the argument with few digits of pi lose relative accuracy near the zeros.
    _facts = Activation(_fn, increasing=False, ulps=4, absolute=1, derivative=_slope, range=(-1.0, 1.0))
    register_activation(f"aten.{_op}.default", _facts, interval=partial(_wave, _facts, _peak), bend=Bend(1.0))
