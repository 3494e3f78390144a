"""Steps: sign, floor, ceil, round, trunc. Exact in every arithmetic: nothing is rounded.

Bounds that touch a jump hold the values on both sides of it; the operand's own bounds already hold its rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import Soundness, tiny
from surebound.rules.facts import Activation
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.lines import Lines
from surebound.rules.relax.step import Steps, step_lines

_FAR = float("inf")


def _sign(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), x, torch.sign(x))  # torch.sign(NaN) is 0, which would look like knowledge


def _interval(step: Callable[[Tensor], Tensor], ctx: Context, x: Interval) -> Interval:
    """Bound a step by its values at the ends; a subnormal end may be read as 0."""
    lower, upper = x.lower, x.upper
    if ctx.soundness is not Soundness.NONE:
        zero, least = torch.zeros_like(lower), tiny(x.dtype)
        lower = torch.where((lower > 0) & (lower < least), zero, lower)
        upper = torch.where((upper < 0) & (upper > -least), zero, upper)
    return Interval(step(lower), step(upper))


def _lines(step: Callable[[Tensor], Tensor], steps: Steps, ctx: Context, x: Interval) -> Lines:
    return step_lines(ctx, steps, x, _interval(step, ctx, x))


def _softened(x: Tensor) -> Tensor:
    """Return x / (s + |x|) with the mean size s of an example's entries."""
    size = x.detach().abs()
    usual = size.mean(dim=tuple(range(1, x.dim())), keepdim=True) if x.dim() > 1 else size
    return x / (usual + size).clamp(min=tiny(x.dtype))


def _straight(x: Tensor) -> Tensor:
    return x


def _trunc_jump(low: Tensor, high: Tensor) -> Tensor:
    """Return the jump between two neighbouring values of trunc: the one that is further from 0."""
    return torch.where(high > 0, high, low)


for _op, _fn, _steps in (
    ("sign", _sign, Steps(lambda low, high: torch.zeros_like(low), height=2.0, below=_FAR, above=_FAR)),
    ("sgn", _sign, Steps(lambda low, high: torch.zeros_like(low), height=2.0, below=_FAR, above=_FAR)),
    ("floor", torch.floor, Steps(lambda low, high: high, below=1.0, above=0.0)),
    ("ceil", torch.ceil, Steps(lambda low, high: low, below=0.0, above=1.0)),
    ("round", torch.round, Steps(lambda low, high: (low + high) / 2, below=0.5, above=0.5)),
    ("trunc", torch.trunc, Steps(_trunc_jump, below=1.0, above=1.0)),
):
    register(
        Rule(
            f"aten.{_op}.default",
            "activation",
            partial(_interval, _fn),
            activation=Activation(_fn, breaks=0.0 if _fn is _sign else None),
            relax=partial(_lines, _fn, _steps),
            note="steps",
            surrogate=_softened if _fn is _sign else _straight,
        )
    )
