"""Lines around functions that rise in steps: one jump between lines through its ends, many between two diagonals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import FEW_ROUNDINGS, Soundness, round_down
from surebound.rules.registry import Context
from surebound.rules.relax.lines import Lines, lines

#: Narrower intervals, by their size, get flat lines.
STEEPEST = 2.0**-12  # heuristic: coefficients of steep lines are large, and so is what their rounding costs


@dataclass(frozen=True)
class Steps:
    """Where a function jumps, and how far it stays from the diagonal: x - below <= f(x) <= x + above.

    ``jump(low, high)``: the one jump between two values of f that are at most ``height`` apart.
    """

    jump: Callable[[Tensor, Tensor], Tensor]
    below: float
    above: float
    height: float = 1.0


def step_lines(ctx: Context, steps: Steps, x: Interval, out: Interval) -> Lines:
    """Relax a step function over x (B, ...) with values in ``out``, exactly if these are one number.

    With one jump at j, of height h: f <= high + s (x - j) for every slope s in [0, h / (j - l)], because the line
    passes above (l, low), and f >= low + s (x - j) for s in [0, h / (u - j)]. The steepest slope or 0, whichever leaves
    the smaller area.
    """
    left, right = x.lower.double(), x.upper.double()
    low, high = out.lower.double(), out.upper.double()
    known = (left.isfinite() & right.isfinite() & low.isfinite() & high.isfinite()) & (high > low)
    single = known & (high - low <= steps.height)
    at = torch.where(single, steps.jump(low, high), 0.0)
    wide = single & (right - left > STEEPEST * torch.maximum(left.abs(), right.abs()))
    above = _slope(wide, high - low, at - left, right - at, x.dtype)
    below = _slope(wide, high - low, right - at, at - left, x.dtype)
    # Several jumps: the diagonal, where its middle is no looser than the values themselves.
    many, middle = known & ~single, left / 2 + right / 2
    rises, falls = many & (middle + steps.above <= high), many & (middle - steps.below >= low)
    above, below = (torch.where(along, torch.ones_like(s), s) for along, s in ((rises, above), (falls, below)))
    top = torch.where(rises, steps.above, high - above.double() * at)
    bottom = torch.where(falls, -steps.below, low - below.double() * at)
    if ctx.soundness is Soundness.NONE:
        return lines(ctx, (x,), (below,), bottom.to(x.dtype), (above,), top.to(x.dtype))
    # Differences of sizes that may nearly cancel: their rounding counts by the sizes.
    lost = FEW_ROUNDINGS * (low.abs() + high.abs() + at.abs())
    return lines(ctx, (x,), (below,), bottom - lost, (above,), top + lost)


def _slope(wide: Tensor, height: Tensor, near: Tensor, far: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the slope (B, ...), rounded down, of a line that rises by ``height`` over ``near``; 0 where that is worse.

    ``wide``: where it may be anything but 0; ``far``: how far the interval reaches to the other side of the jump.
    """
    steep = wide & (near > far) & (near > 0)
    slope = torch.where(steep, height / torch.where(steep, near, 1.0), 0.0)
    return round_down(slope * (1 - FEW_ROUNDINGS), dtype).clamp(min=0)
