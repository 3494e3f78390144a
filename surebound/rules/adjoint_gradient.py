"""Adjoints of convolutions and matrices with gradients, in the memory order and the form that their kernels like best.

Coefficients of units that are off are 0 in all rows of an example, and are left out where it pays (kernels/sparse.py).
adjoint(a; w) is linear in both, and <adjoint(a; w), g> = <a, convolution(g; w)>: so its gradients are a
convolution of g and the weight gradient of that convolution.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound import kernels
from surebound.kernels import products, rows
from surebound.kernels.sparse import Live
from surebound.rules.layouts import channels_last, spread

#: A convolution whose window holds at most this many numbers is a product of matrices and a sum of windows.
WINDOW = 64

Sizes = tuple[int, ...]


class _Adjoint(torch.autograd.Function):
    """a (N, out, *size) -> (N, in, *size)."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        w: Tensor,
        rows: int,
        in_size: Sizes,
        stride: Sizes,
        pad: Sizes,
        dil: Sizes,
        groups: int,
    ) -> Tensor:
        ctx.save_for_backward(a, w)
        ctx.settings, ctx.rows = (in_size, stride, pad, dil, groups), rows
        if windowed(w, groups) and a.is_contiguous():  # plane by plane: no copy, a small product per example
            columns = torch.matmul(w.flatten(1).t(), a.flatten(2))  # (N, in * window, positions)
            return F.fold(columns, in_size, tuple(w.shape[2:]), dil, pad, stride)
        if _plain(w, pad, dil, groups):
            windows = _rows(a) @ _matrix(w)  # (N * positions, window * in)
            cut = windows.view(a.shape[0], *a.shape[2:], *w.shape[2:], w.shape[1])
            return kernels.fold(cut, in_size, stride, (0, 0)).movedim(-1, 1)  # type: ignore[arg-type]
        if windowed(w, groups):
            columns = _rows(a) @ w.flatten(1)  # (N * positions, in * window)
            columns = columns.reshape(a.shape[0], -1, columns.shape[1]).transpose(1, 2)
            return F.fold(columns, in_size, tuple(w.shape[2:]), dil, pad, stride)
        if _compiled(w, dil, groups):
            images, weight = channels_last(a), channels_last(w)
            live = None if any(pad) else Live.of(images, rows)
            done = None if live is None else live.adjoint(weight, in_size, stride)
            if done is None:
                done = products.input_gradient(images, in_size, weight, stride, pad)
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
            return below, of_w, None, None, None, None, None, None
        if windowed(w, groups):
            columns = F.unfold(g, tuple(w.shape[2:]), dil, pad, stride).transpose(1, 2)
            columns = columns.reshape(-1, columns.shape[2])  # (N * positions, in * window)
            g_a = (columns @ w.flatten(1).t()).reshape(a.shape[0], *a.shape[2:], -1).movedim(-1, 1)
            return g_a, (_rows(a).t() @ columns).reshape(w.shape), None, None, None, None, None, None
        g = channels_last(g)
        weight = channels_last(w)
        g_a = g_w = None
        if _compiled(w, dil, groups):
            a = channels_last(a)
            if not any(pad):
                live, live_a = Live.of(g, ctx.rows), Live.of(a, ctx.rows)
                g_a = live.product(weight, a.shape[2:], stride) if need_a and live is not None else None
                g_w = live_a.weight_gradient(g, weight, stride) if need_w and live_a is not None else None
            if need_a and g_a is None:
                g_a = products.product(g, weight, None, stride, pad)
            if need_w and g_w is None:
                g_w = products.weight_gradient(a, g, weight, stride, pad)
        if need_a and g_a is None:
            g_a = torch.convolution(g, weight, None, stride, pad, dil, False, [0] * len(stride), groups)
        if need_w and g_w is None:
            g_w = _backward(channels_last(a), g, w, ctx.settings, [False, True, False])[1]
        return g_a, g_w, None, None, None, None, None, None


class _MatrixAdjoint(torch.autograd.Function):
    """a (N, out), w (out, in) -> a w (N, in)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, w: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(a, w)
        ctx.rows = rows
        live = Live.of(a, rows)
        done = None if live is None else live.adjoint(w, (), ())
        return a @ w if done is None else done

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, w = ctx.saved_tensors
        g, (need_a, need_w, _) = g.contiguous(), ctx.needs_input_grad
        live, live_a = Live.of(g, ctx.rows), Live.of(a, ctx.rows) if need_w else None
        g_a = live.product(w, (), ()) if need_a and live is not None else None
        if need_a and g_a is None:
            g_a = g @ w.t()
        return g_a, _matrix_gradient(a, g, live_a, live) if need_w else None, None


def _matrix_gradient(a: Tensor, g: Tensor, live_a: Live | None, live_g: Live | None) -> Tensor:
    """a^T g (out, in) of rows (N, out) and (N, in), by what is not 0 for the whole batch."""
    on_a = None if live_a is None else live_a.columns
    on_g = None if live_g is None else live_g.columns
    part = (a if on_a is None else a.index_select(1, on_a)).t() @ (
        g if on_g is None else g.index_select(1, on_g)
    )
    return spread(spread(part, 1, on_g, g.shape[1]), 0, on_a, a.shape[1])


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
    a: Tensor, w: Tensor, rows: int, in_size: Sizes, stride: Sizes, pad: Sizes, dil: Sizes, groups: int
) -> Tensor:
    """A^T a for a (N, out, *size), differentiable in a and w; of ``rows`` rows for each of N / rows examples."""
    result: Tensor = _Adjoint.apply(a, w, rows, in_size, stride, pad, dil, groups)  # type: ignore[no-untyped-call]
    return result


def matrix_adjoint(a: Tensor, w: Tensor) -> Tensor:
    """a w for rows a (S, B, out) and w (out, in), differentiable in both."""
    flat = a.flatten(0, 1).contiguous()
    found: Tensor = _MatrixAdjoint.apply(flat, w, a.shape[0])  # type: ignore[no-untyped-call]
    return found.view(*a.shape[:2], -1)
