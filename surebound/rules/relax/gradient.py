"""Going back through lines with gradients: one pass over the coefficients each way, in blocks that stay in the cache.

Written out because automatic differentiation of the same formulas makes a dozen passes over arrays of S times the
size of an activation, which costs more than the products of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from surebound.kernels import rows
from surebound.numerics import CACHE_ENTRIES


class _Pull(torch.autograd.Function):
    """a (S, B, *n) -> where(a > 0, upper a, lower a), and sum(max(a, 0) top); lower, upper, top (B, *n).

    Where the two slopes are one tensor, ``lower`` is None. The result lies in memory as the slopes do.
    """

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, lower: Tensor | None, upper: Tensor, top: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(a, lower, upper, top)
        quick = rows.pull(a, lower, upper, top)
        if quick is not None:
            return quick
        last = _channels_innermost(upper)
        back, offset = _empty(a, last), a.new_empty(a.shape[:2])
        for b in _blocks(a.shape):
            part = _laid_out(a[:, b], last)
            positive = part.clamp(min=0)
            offset[:, b] = (positive * top[b]).flatten(2).sum(2)
            if lower is None:
                torch.mul(part, upper[b], out=back[:, b])
            else:
                negative = torch.sub(part, positive).mul_(lower[b])
                torch.addcmul(negative, positive, upper[b], out=back[:, b])
        return back, offset

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_offset: Tensor) -> Any:
        a, lower, upper, top = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        quick = rows.pull_backward(a, g, g_offset, lower, upper, top, wanted)
        if quick is not None:
            return quick
        last = _channels_innermost(upper)
        g_a = torch.empty_like(a)
        grads = [torch.empty_like(upper) if need else None for need in wanted]
        for b in _blocks(a.shape):
            part, gs = _laid_out(a[:, b], last), _laid_out(g[:, b], last)
            found = _gradients(
                part, gs, g_offset[:, b], None if lower is None else lower[b], upper[b], top[b], wanted
            )
            g_a[:, b] = found[0]
            for total, piece in zip(grads, found[1:], strict=True):
                if total is not None and piece is not None:
                    total[b] = piece
        return g_a, *grads


def _gradients(
    a: Tensor, g: Tensor, go: Tensor, lower: Tensor | None, upper: Tensor, top: Tensor, wanted: Any
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Of one block, with respect to a and, as far as they are wanted, to lower, upper and top."""
    go = go.reshape(*go.shape, *([1] * (a.dim() - 2)))
    above = a > 0
    g_up = g * upper
    raised = torch.addcmul(g_up, go, top)
    g_a = torch.where(above, raised, g_up if lower is None else g * lower)
    positive = a.clamp(min=0)
    need_lower, need_upper, need_top = wanted
    g_lower = g_upper = None
    if need_upper:
        g_upper = torch.mul(a if lower is None else positive, g).sum(0)
    if need_lower:
        g_lower = torch.sub(a, positive).mul_(g).sum(0)
    g_top = positive.mul_(go).sum(0) if need_top else None
    return g_a, g_lower, g_upper, g_top


class _Largest(torch.autograd.Function):
    """a (S, B, *n) -> a.center + |a|.radius (S, B), the largest value over a box that has no gradients."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
        ctx.save_for_backward(a, center, radius)
        quick = rows.largest(a, center, radius)
        if quick is not None:
            return quick
        best = a.new_empty(a.shape[:2])
        for b in _blocks(a.shape):
            part = a[:, b]
            best[:, b] = (part * center[b]).addcmul_(part.abs(), radius[b]).flatten(2).sum(2)
        return best

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, center, radius = ctx.saved_tensors
        quick = rows.largest_backward(a, g, center, radius)
        if quick is not None:
            return quick, None, None
        g_a = torch.empty_like(a)
        for b in _blocks(a.shape):
            over = g[:, b].reshape(*g[:, b].shape, *([1] * (a.dim() - 2)))
            g_a[:, b] = torch.addcmul(center[b], a[:, b].sign(), radius[b]).mul_(over)
        return g_a, None, None


class _Along(torch.autograd.Function):
    """a (S, B, *n) -> a.v (S, B) for v (1, *n), and a again, so that its gradients are added up in one pass."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        same = tuple(i + 1 for i in range(1, v.dim()) if v.shape[i] == 1 and a.shape[i + 1] > 1)
        short = a.sum(same, keepdim=True) if same else a
        ctx.save_for_backward(short, v)
        return (short * v).flatten(2).sum(2), a.view_as(a)

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_a: Tensor) -> Any:
        short, v = ctx.saved_tensors
        over = g.reshape(*g.shape, *([1] * (g_a.dim() - 2))).to(g_a.dtype)
        g_v = (over * short).sum((0, 1)).unsqueeze(0) if ctx.needs_input_grad[1] else None
        return torch.addcmul(g_a, over, v) if ctx.needs_input_grad[0] else None, g_v


def _blocks(shape: torch.Size) -> Iterator[slice]:
    """Some examples at a time, with all their rows: about CACHE_ENTRIES entries."""
    each = max(1, shape[0] * math.prod(shape[2:]))
    step = max(1, CACHE_ENTRIES // each)
    for first in range(0, shape[1], step):
        yield slice(first, first + step)


def _channels_innermost(value: Tensor) -> bool:
    return (
        value.dim() == 4
        and value.is_contiguous(memory_format=torch.channels_last)
        and not value.is_contiguous()
    )


def _laid_out(value: Tensor, last: bool) -> Tensor:
    """(S, B, C, H, W) with channels innermost, or as it is: elementwise work on mixed orders is slow."""
    return value.movedim(2, -1).contiguous().movedim(-1, 2) if last else value


def _empty(like: Tensor, last: bool) -> Tensor:
    if not last:
        return torch.empty_like(like, memory_format=torch.contiguous_format)
    s, b, c, h, w = like.shape
    return like.new_empty(s, b, h, w, c).movedim(-1, 2)


def pull_lines(a: Tensor, lower: Tensor | None, upper: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients (S, B, *n) and offsets (S, B), differentiable; see ``_Pull``."""
    result: tuple[Tensor, Tensor] = _Pull.apply(a, lower, upper, top)  # type: ignore[no-untyped-call]
    return result


def largest(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """max of a.x over a box, a (S, B, *n), center and radius (B, *n): (S, B), differentiable in a."""
    if center.requires_grad or radius.requires_grad or a.dim() == 2:
        each = a * center + a.abs() * radius
        return each.flatten(2).sum(2) if a.dim() > 2 else each
    result: Tensor = _Largest.apply(a, center, radius)  # type: ignore[no-untyped-call]
    return result


def along(a: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """a.v (S, B) for a (S, B, *n), v (1, *n) or with 1 for axes along which it is the same; use the a returned."""
    result: tuple[Tensor, Tensor] = _Along.apply(a, v)  # type: ignore[no-untyped-call]
    return result
