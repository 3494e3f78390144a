"""Elementwise functions: the facts of each, and the interval rule that all of them share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from functools import partial
from typing import Any
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import outward
from surebound.rules.facts import Activation, Shape
from surebound.rules.registry import Context, Rule, register


def elementwise_interval(facts: Activation, ctx: Context, x: Interval, *args: Any, **kwargs: Any) -> Interval:
    """The exact hull: the ends of a monotone function; of one with a valley or a peak, that point too (eq. 7)."""
    at_lower, at_upper = facts.fn(x.lower, *args, **kwargs), facts.fn(x.upper, *args, **kwargs)
    if facts.increasing:
        lower, upper = at_lower, at_upper
    else:
        lower, upper = torch.minimum(at_lower, at_upper), torch.maximum(at_lower, at_upper)
    for extremum, is_valley in ((facts.valley, True), (facts.peak, False)):
        if extremum is not None:
            position, value = extremum
            inside = (x.lower <= position) & (position <= x.upper)
            if is_valley:
                lower = torch.where(inside, torch.full_like(lower, value), lower)
            else:
                upper = torch.where(inside, torch.full_like(upper, value), upper)
    lower, upper = outward(lower, upper, ctx.soundness, facts.ulps)
    return Interval(lower, upper)


def register_activation(op: str, facts: Activation, note: str = "") -> None:
    """One row for one elementwise function."""
    register(
        Rule(
            op=op,
            family="activation",
            interval=partial(elementwise_interval, facts),
            activation=facts,
            note=note,
        )
    )


def _relu_pieces(*_: Any) -> tuple[tuple[float, float, float], ...]:
    return ((-float("inf"), 0.0, 0.0), (0.0, 1.0, 0.0))


register_activation(
    "aten.relu.default",
    Activation(torch.relu, shape=Shape.CONVEX, pieces=_relu_pieces, derivative=lambda x: (x > 0).to(x.dtype)),
)
