"""Values that a fused operator computes with other roundings than the calls that it is written as.

graph/decompose.py writes LayerNorm, attention and their relatives as calls that have rules. An execution may compute
them in one kernel: the exact result is the same, the roundings are not, and ``about(y, size, roundings)`` covers the
difference (docs/soundness.md, "Fused operators"). On numbers it is y.
"""

from __future__ import annotations

from torch import Tensor

from surebound.graph.decompose import ABOUT
from surebound.interval import Interval
from surebound.numerics import Soundness, round_down, round_up
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.lines import Lines, lines
from surebound.rules.relax.pairs import own_rounding


def _error(ctx: Context, y: Interval, size: Interval | Tensor, roundings: float) -> Tensor:
    """Bound ``roundings`` roundings of numbers as large as ``size``: (B, *y) in float64."""
    largest = size.magnitude if isinstance(size, Interval) else size.abs()
    return own_rounding(ctx, largest.double().expand(y.shape), y.dtype, int(roundings))


def _interval(ctx: Context, y: Interval, size: Interval | Tensor, roundings: float) -> Interval:
    """Widen y where executions are covered."""
    if ctx.soundness is not Soundness.DEPLOYED:
        return y
    error = _error(ctx, y, size, roundings)
    return Interval(round_down(y.lower.double() - error, y.dtype), round_up(y.upper.double() + error, y.dtype))


def _lines(ctx: Context, y: Interval, size: Interval | Tensor, roundings: float) -> Lines:
    """Relax by y itself, the error beside it."""
    error = _error(ctx, y, size, roundings)
    error = error.to(y.dtype) if ctx.soundness is Soundness.NONE else error
    return lines(ctx, (y,), (1.0,), -error, (1.0,), error)


register(Rule(ABOUT, "fused arithmetic", _interval, relax=_lines, sizes_after_first=True))
