"""Going back through lines with gradients: one pass over the coefficients each way.

Written out because automatic differentiation of the same formulas makes a dozen passes over arrays of S times the
size of an activation, which costs more than the products of a layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from surebound.kernels import rows


class _Pull(torch.autograd.Function):
    """``rows.pull`` through a lower line without intercept: coefficients a (S, B, *n) and offsets (S, B)."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, lower: Tensor | None, upper: Tensor, top: Tensor, more: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(a, lower, upper, top)
        back, offset, _ = rows.pull(a, lower, upper, None, top, more)
        return back, offset

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_offset: Tensor) -> Any:
        a, lower, upper, top = ctx.saved_tensors
        return *rows.pull_backward(a, g, g_offset, lower, upper, top, ctx.needs_input_grad[1:4]), None


class _Largest(torch.autograd.Function):
    """a (S, B, *n) -> a.center + |a|.radius (S, B), the largest value over a box that has no gradients."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
        ctx.save_for_backward(a, center, radius)
        return rows.dot(a, rows.Price(center, radius))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, center, radius = ctx.saved_tensors
        return rows.largest_backward(a, g, center, radius), None, None


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


def pull_lines(a: Tensor, lower: Tensor | None, upper: Tensor, top: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """Take rows back through lines (``rows.pull``) with a written-out gradient; lower (B, *n) or None."""
    result: tuple[Tensor, Tensor] = _Pull.apply(a, lower, upper, top, more)  # type: ignore[no-untyped-call]
    return result


def largest(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """Return max a.x (S, B) over a box, a (S, B, *n), center and radius (B, *n); differentiable in a."""
    if center.requires_grad or radius.requires_grad or a.dim() == 2:
        each = a * center + a.abs() * radius
        return each.flatten(2).sum(2) if a.dim() > 2 else each
    result: Tensor = _Largest.apply(a, center, radius)  # type: ignore[no-untyped-call]
    return result


def along(a: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return a.v (S, B) for a (S, B, *n), v (1, *n) or with 1 along axes where it is constant; use the a returned."""
    result: tuple[Tensor, Tensor] = _Along.apply(a, v)  # type: ignore[no-untyped-call]
    return result
