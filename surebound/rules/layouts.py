"""Weighted operators and memory layouts for training's fast column: channels on axis 1, innermost in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound import kernels
from surebound.kernels import products

#: Up to so many input channels the usual kernels leave most of a vector empty when they compute their gradient.
FEW_CHANNELS = 12


@dataclass(frozen=True)
class Layer:
    """A weighted operator: product and its two gradients, with channels on axis 1 of input and output."""

    product: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    backward: Callable[
        [Tensor, Tensor, Tensor, bool], tuple[Tensor | None, Tensor]
    ]  # (g, x, w, need x) -> gx, gw
    input_gradient: Callable[[Tensor, Tensor, Tensor], Tensor]  # (g, x, w) -> gx
    matrix: bool = False  # fully connected: x (N, F)


def linear_layer() -> Layer:
    """x (N, F)."""

    def backward(g: Tensor, x: Tensor, w: Tensor, need_x: bool) -> tuple[Tensor | None, Tensor]:
        return (g @ w if need_x else None), g.t() @ x

    return Layer(F.linear, backward, lambda g, x, w: g @ w, matrix=True)


def conv_layer(
    rank: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Layer | None:
    """x (N, C, *size); None where a spelling has no fast form."""
    if isinstance(padding, str) or groups != 1:
        return None
    s, p, d = (
        [v] * rank if isinstance(v, int) else list(v) * (rank if len(v) == 1 else 1)
        for v in (stride, padding, dilation)
    )
    zero = [0] * rank

    quick = rank == 2 and d == [1, 1]

    def product(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        done = products.product(x, w, b, s, p) if quick else None
        return done if done is not None else torch.convolution(x, w, b, s, p, d, False, zero, 1)

    def gradients(g: Tensor, x: Tensor, w: Tensor, mask: list[bool]) -> Any:
        return torch.ops.aten.convolution_backward(g, x, w, None, s, p, d, False, zero, 1, mask)

    def input_gradient(g: Tensor, x: Tensor, w: Tensor) -> Tensor:
        gx = products.input_gradient(g, x.shape[2:], w, s, p) if quick else None
        if gx is None and quick and x.shape[1] <= FEW_CHANNELS and x.device.type == "cpu":
            gx = _by_windows(g, x, w, s, p)
        return gradients(g, x, w, [True, False, False])[0] if gx is None else gx

    def backward(g: Tensor, x: Tensor, w: Tensor, need_x: bool) -> tuple[Tensor | None, Tensor]:
        w = channels_last(w)
        gw = products.weight_gradient(g, x, w, s, p) if quick else None
        if gw is None:
            gw = gradients(g, x, w, [False, True, False])[1]
        return (input_gradient(g, x, w) if need_x else None), gw

    return Layer(product, backward, input_gradient)


def _by_windows(g: Tensor, x: Tensor, w: Tensor, stride: list[int], pad: list[int]) -> Tensor:
    """The gradient of a convolution's input as one product of matrices and a sum of windows."""
    n, c, *size = x.shape
    matrix = w.permute(0, 2, 3, 1).reshape(w.shape[0], -1)  # (out, kh kw C)
    windows = (to_rows(g) @ matrix).view(n, *g.shape[2:], *w.shape[2:], c)
    folded = kernels.fold(windows, (size[0], size[1]), (stride[0], stride[1]), (pad[0], pad[1]))
    return channels_last(folded.movedim(-1, 1))


def channels_last(value: Tensor) -> Tensor:
    """Images with their channels innermost, which the convolution kernels like best; other ranks as they are.

    With one channel (or one pixel) both layouts are the same memory, and PyTorch decides by the strides which one
    is meant: they are written out.
    """
    if value.dim() != 4:
        return value
    _, c, h, w = value.shape
    value = value.contiguous(memory_format=torch.channels_last)
    strides = (c * h * w, 1, w * c, c)
    return value if value.stride() == strides else value.as_strided(value.shape, strides)


def to_rows(value: Tensor) -> Tensor:
    """(N, C, *size) as rows (N * size, C): a view where channels are innermost in memory."""
    if value.dim() == 2:
        return value.contiguous()
    return value.movedim(1, -1).reshape(-1, value.shape[1]).contiguous()


def from_rows(rows: Tensor, examples: int, size: torch.Size) -> Tensor:
    """Back from ``to_rows``, without a copy."""
    if not size:
        return rows
    return channels_last(rows.view(examples, *size, rows.shape[1]).movedim(-1, 1))


def spread(value: Tensor, axis: int, on: Tensor | None, channels: int) -> Tensor:
    """Put the entries ``on`` of an axis back among zeros; None: they are all there."""
    if on is None:
        return value
    shape = [channels if i == axis else n for i, n in enumerate(value.shape)]
    return value.new_zeros(shape).index_copy_(axis, on, value)


def flattened(on: Tensor, channels: int, positions: int) -> Tensor:
    """Numbers that PyTorch's flatten gives to units that are counted with the channel innermost."""
    return on % channels * positions + on // channels


def reorder(value: Tensor, outer: int, inner: int) -> Tensor:
    """Columns (N, outer * inner) counted with ``inner`` innermost -> with ``outer`` innermost."""
    images = value.reshape(-1, outer, 1, inner).permute(0, 3, 1, 2)  # (N, inner, outer, 1)
    return kernels.channels_outermost(images).reshape(value.shape[0], -1)


def unflattened(on: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Of units counted with the channel innermost: their channels (c,), and their places among the units of those."""
    alive = torch.zeros(channels, dtype=torch.bool, device=on.device)
    alive[on % channels] = True
    kept = alive.nonzero().squeeze(1)
    rank = alive.cumsum(0) - 1
    return kept, on // channels * kept.numel() + rank[on % channels]
