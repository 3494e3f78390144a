"""Adjoints of convolutions and matrices with gradients, in the memory order that is fastest for their kernels.

Coefficients of dead units are 0 in all rows of an example, and are left out where it pays (kernels/sparse.py).
adjoint(a; w) is linear in both, and <adjoint(a; w), g> = <a, convolution(g; w)>: so its gradients are a
convolution of g and the weight gradient of that convolution.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.kernels.blocks import unfold
from surebound.kernels.products import Conv, by_windows
from surebound.kernels.sparse import Live, live, rows_adjoint, rows_product, rows_weight
from surebound.rules.layouts import channels_last, spread

#: A convolution whose window holds at most this many numbers is a product of matrices and a sum of windows.
WINDOW = 64

Sizes = tuple[int, ...]


class _Adjoint(torch.autograd.Function):
    """a (N, out, *size) -> W^T a (N, in, *size)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, w: Tensor, rows: int, in_size: Sizes, conv: Conv) -> Tensor:
        ctx.save_for_backward(a, w)
        ctx.conv, ctx.rows = conv, rows if conv.unpadded else 1
        if windowed(w, conv):
            return by_windows(a, in_size, w, conv)
        return rows_adjoint(live(channels_last(a), ctx.rows), channels_last(w), in_size, conv)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, w = ctx.saved_tensors
        conv, (need_a, need_w, *_) = ctx.conv, ctx.needs_input_grad
        g_a = g_w = None
        if windowed(w, conv):
            images = F.pad(g, (conv.pad[1], conv.pad[1], conv.pad[0], conv.pad[0])) if any(conv.pad) else g
            cut = unfold(images.movedim(1, -1).contiguous(), tuple(w.shape[2:]), conv.stride)
            windows = cut.view(-1, w[0].numel())  # (N * positions, window * in)
            matrix, rows = w.movedim(1, -1).flatten(1), a.movedim(1, -1).reshape(-1, a.shape[1])
            if need_a:
                g_a = (windows @ matrix.t()).view(a.shape[0], *a.shape[2:], -1).movedim(-1, 1)
            if need_w:
                g_w = (rows.t() @ windows).view(w.shape[0], *w.shape[2:], w.shape[1]).movedim(-1, 1)
            return g_a, g_w, None, None, None
        g, weight = channels_last(g), channels_last(w)
        if need_a:
            g_a = rows_product(live(g, ctx.rows), weight, a.shape[2:], conv)
        if need_w:
            g_w = rows_weight(live(channels_last(a), ctx.rows), g, weight, conv)
        return g_a, g_w, None, None, None


class _MatrixAdjoint(torch.autograd.Function):
    """a (N, out), w (out, in) -> a w (N, in)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, w: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(a, w)
        ctx.rows = rows
        return rows_adjoint(live(a, rows), w, (), None)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, w = ctx.saved_tensors
        need_a, need_w, _ = ctx.needs_input_grad
        of_g = live(g.contiguous(), ctx.rows)
        g_a = rows_product(of_g, w, (), None) if need_a else None
        return g_a, matrix_gradient(live(a, ctx.rows), of_g) if need_w else None, None


def matrix_gradient(a: Live, g: Live) -> Tensor:
    """Return a^T g (out, in) of rows a (N, out) and g (N, in), skipping entries that are 0 for the whole batch."""
    on_a, on_g = a.columns, g.columns
    part = (a.rows if on_a is None else a.rows.index_select(1, on_a)).t() @ (
        g.rows if on_g is None else g.rows.index_select(1, on_g)
    )
    return spread(spread(part, 1, on_g, g.rows.shape[1]), 0, on_a, a.rows.shape[1])


def windowed(w: Tensor, conv: Conv) -> bool:
    """Is the adjoint a product with small windows, and a sum of them?"""
    return w.dim() == 4 and conv.ungrouped and w[0].numel() <= WINDOW


def convolution_adjoint(a: Tensor, w: Tensor, rows: int, in_size: Sizes, conv: Conv) -> Tensor:
    """Return A^T a for a (N, out, *size), ``rows`` rows for each of N / rows examples; differentiable in a and w."""
    result: Tensor = _Adjoint.apply(a, w, rows, in_size, conv)  # type: ignore[no-untyped-call]
    return result


def matrix_adjoint(a: Tensor, w: Tensor) -> Tensor:
    """Return a w for coefficients a (S, B, out) and w (out, in), differentiable in both."""
    flat = a.flatten(0, 1).contiguous()
    found: Tensor = _MatrixAdjoint.apply(flat, w, a.shape[0])  # type: ignore[no-untyped-call]
    return found.view(*a.shape[:2], -1)
