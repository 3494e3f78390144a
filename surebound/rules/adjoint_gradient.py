"""The adjoint of a convolution with gradients, in the memory order and the form that its kernels like best.

adjoint(a; w) is linear in both, and <adjoint(a; w), g> = <a, convolution(g; w)>: so its gradients are a
convolution of g and the weight gradient of that convolution.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound import native
from surebound.native import products, rows
from surebound.rules.layouts import channels_last

#: A convolution whose window holds at most this many numbers is a product of matrices and a sum of windows.
WINDOW = 64

Sizes = tuple[int, ...]


class _Adjoint(torch.autograd.Function):
    """a (N, out, *size) -> (N, in, *size)."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, w: Tensor, in_size: Sizes, stride: Sizes, pad: Sizes, dil: Sizes, groups: int
    ) -> Tensor:
        ctx.save_for_backward(a, w)
        ctx.settings = (in_size, stride, pad, dil, groups)
        if windowed(w, groups) and a.is_contiguous():  # plane by plane: no copy, a small product per example
            columns = torch.matmul(w.flatten(1).t(), a.flatten(2))  # (N, in * window, positions)
            return F.fold(columns, in_size, tuple(w.shape[2:]), dil, pad, stride)
        if _plain(w, pad, dil, groups):
            windows = _rows(a) @ _matrix(w)  # (N * positions, window * in)
            cut = windows.view(a.shape[0], *a.shape[2:], *w.shape[2:], w.shape[1])
            return native.fold(cut, in_size, stride, (0, 0)).movedim(-1, 1)  # type: ignore[arg-type]
        if windowed(w, groups):
            columns = _rows(a) @ w.flatten(1)  # (N * positions, in * window)
            columns = columns.reshape(a.shape[0], -1, columns.shape[1]).transpose(1, 2)
            return F.fold(columns, in_size, tuple(w.shape[2:]), dil, pad, stride)
        if _compiled(w, dil, groups):
            done = products.input_gradient(channels_last(a), in_size, channels_last(w), stride, pad)
            if done is not None:
                return done
        like = channels_last(a.new_empty(()).expand(a.shape[0], w.shape[1] * groups, *in_size))
        mask = [True, False, False]
        return _backward(channels_last(a), like, w, ctx.settings, mask)[0]  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, w = ctx.saved_tensors
        _, stride, pad, dil, groups = ctx.settings
        need_a, need_w = ctx.needs_input_grad[:2]
        if _plain(w, pad, dil, groups):
            cut = rows.unfold(g.movedim(1, -1).contiguous(), tuple(w.shape[2:]), stride)
            windows = cut.view(-1, w[0].numel())  # (N * positions, window * in)
            below = (windows @ _matrix(w).t()).view(a.shape[0], *a.shape[2:], -1).movedim(-1, 1)
            of_w = (_rows(a).t() @ windows).view(w.shape[0], *w.shape[2:], w.shape[1]).movedim(-1, 1)
            return below, of_w, None, None, None, None, None
        if windowed(w, groups):
            columns = F.unfold(g, tuple(w.shape[2:]), dil, pad, stride).transpose(1, 2)
            columns = columns.reshape(-1, columns.shape[2])  # (N * positions, in * window)
            g_a = (columns @ w.flatten(1).t()).reshape(a.shape[0], *a.shape[2:], -1).movedim(-1, 1)
            return g_a, (_rows(a).t() @ columns).reshape(w.shape), None, None, None, None, None
        g = channels_last(g)
        weight = channels_last(w)
        g_a = g_w = None
        if _compiled(w, dil, groups):
            g_a = products.product(g, weight, None, stride, pad) if need_a else None
            g_w = products.weight_gradient(channels_last(a), g, weight, stride, pad) if need_w else None
        if need_a and g_a is None:
            g_a = torch.convolution(g, weight, None, stride, pad, dil, False, [0] * len(stride), groups)
        if need_w and g_w is None:
            g_w = _backward(channels_last(a), g, w, ctx.settings, [False, True, False])[1]
        return g_a, g_w, None, None, None, None, None


def windowed(w: Tensor, groups: int) -> bool:
    """Is the adjoint a product with small windows, and a sum of them?"""
    return w.dim() == 4 and groups == 1 and w[0].numel() <= WINDOW


def _compiled(w: Tensor, dil: Sizes, groups: int) -> bool:
    """A convolution of the kind that has compiled kernels."""
    return w.dim() == 4 and groups == 1 and all(d == 1 for d in dil)


def by_windows(a: Tensor, w: Tensor, pad: Sizes, dil: Sizes, groups: int) -> bool:
    """Is that the quickest form also without gradients, and not much larger than a (N, out, *size) itself?"""
    small = windowed(w, groups) and w[0].numel() <= 2 * w.shape[0]
    return small and a.device.type == "cpu" and (a.is_contiguous() or _plain(w, pad, dil, groups))


def _plain(w: Tensor, pad: Sizes, dil: Sizes, groups: int) -> bool:
    """Windows side by side in memory, as the compiled sums of them want it."""
    return windowed(w, groups) and not any(pad) and all(d == 1 for d in dil)


def _matrix(w: Tensor) -> Tensor:
    """(out, in, kh, kw) as (out, window * in), channels innermost."""
    return w.movedim(1, -1).flatten(1)


def _rows(a: Tensor) -> Tensor:
    """(N, out, *size) as one row per position: a view where channels are innermost."""
    return a.movedim(1, -1).reshape(-1, a.shape[1])


def _backward(
    g: Tensor, x: Tensor, w: Tensor, settings: tuple[Any, ...], mask: list[bool]
) -> tuple[Tensor | None, ...]:
    _, stride, pad, dil, groups = settings
    found: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
        g, x, channels_last(w), None, stride, pad, dil, False, [0] * len(stride), groups, mask
    )
    return found


def convolution_adjoint(
    a: Tensor, w: Tensor, in_size: Sizes, stride: Sizes, pad: Sizes, dil: Sizes, groups: int
) -> Tensor:
    """A^T a for a (N, out, *size), differentiable in a and w."""
    result: Tensor = _Adjoint.apply(a, w, in_size, stride, pad, dil, groups)  # type: ignore[no-untyped-call]
    return result
