"""The largest or smallest entry by other names: along an axis, of adaptive windows, of all entries so far.

These operators give several tensors: one relaxation for each, None where only bounds are known (positions).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from surebound.interval import Interval
from surebound.rules.registry import Context
from surebound.rules.relax.choice import Choice, choose, extreme
from surebound.rules.windows import adaptive_windows

Parts = tuple[Choice | None, ...]


def along_axis(sign: float, ctx: Context, x: Interval, dim: int, keepdim: bool = False) -> Parts:
    """Relax max (sign 1) or min (-1) along one axis, and the position."""
    return extreme(sign, ctx, x, [dim], keepdim), None


def both_ends(ctx: Context, x: Interval, *, dim: int | None = None, keepdim: bool = False) -> Parts:
    """Relax aminmax: the smallest and the largest; of all entries of all examples, only bounds are known."""
    if dim is None:
        return None, None
    return extreme(-1.0, ctx, x, [dim], keepdim), extreme(1.0, ctx, x, [dim], keepdim)


def running(sign: float, ctx: Context, x: Interval, dim: int) -> Parts:
    """Relax cummax or cummin: the extreme of an entry and all before it."""
    axis = dim % len(x.shape)
    if axis == 0:
        return None, None
    shape, count = x.shape[1:], int(x.shape[axis])
    lines = torch.arange(shape.numel(), device=x.device).reshape(shape).movedim(axis - 1, -1)  # (..., N)
    later = torch.ones(count, count, dtype=torch.bool, device=x.device).triu(1)
    windows = lines.unsqueeze(-2).expand(*lines.shape[:-1], count, count).masked_fill(later, -1)
    return choose(ctx, x, windows.movedim(-2, axis - 1).reshape(-1, count), shape, sign), None


def adaptive_max_pool(rank: int, ctx: Context, x: Interval, size: Sequence[int]) -> Parts:
    """Relax adaptive max-pooling of x (B, C, *size)."""
    if len(x.shape) != rank + 2:
        return None, None
    windows, sizes = adaptive_windows(x.shape, size)
    return choose(ctx, x, windows.to(x.device), (int(x.shape[1]), *sizes)), None
