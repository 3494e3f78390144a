"""A ReLU between lines of any slopes: each touches it where that slope allows, at an end of the interval or at 0."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import FEW_ROUNDINGS, Soundness
from surebound.rules.registry import Context
from surebound.rules.relax.lines import Lines, lines


def tilted_relu(ctx: Context, x: Interval, lower: Tensor, upper: Tensor) -> Lines:
    """Relax max(x, 0) over x (B, *n) between lines of the given slopes (B, *n), which need not be good ones.

    max(p, 0) - slope p is piecewise linear in p, so its extremes lie at the ends or at the bend. Differentiable in the
    slopes and the ends (Dvijotham et al. 2018: the inner maximum of one activation, given its dual variable).
    """
    sound = ctx.soundness is not Soundness.NONE
    ends = (x.lower.double(), x.upper.double()) if sound else (x.lower, x.upper)
    bend = torch.maximum(torch.minimum(torch.zeros_like(ends[0]), ends[1]), ends[0])
    points = torch.stack([*ends, bend])  # (3, B, *n)
    below, above = ((points.clamp(min=0) - slope.to(points.dtype) * points) for slope in (lower, upper))
    bottom, top = below.amin(0), above.amax(0)
    if sound:  # products of two numbers of the network are exact in float64
        bottom, top = (
            end + sign * FEW_ROUNDINGS * (1 + slope.abs()) * x.magnitude.double()
            for end, sign, slope in ((bottom, -1.0, lower.double()), (top, 1.0, upper.double()))
        )
    return lines(ctx, (x,), (lower,), bottom, (upper,), top)
