"""Weighted operators and memory layouts for training's fast column: channels on axis 1, innermost in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surebound.kernels.blocks import channels_outermost
from surebound.kernels.matrices import matrix, matrix_input, matrix_weight
from surebound.kernels.products import Conv, product, product_input, product_weight


@dataclass(frozen=True)
class WeightedLayer:
    """A weighted operator: product and its two gradients, with channels on axis 1 of input and output."""

    product: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor | None, Tensor]]  # (g, x, w, need x) -> gx, gw
    input_gradient: Callable[[Tensor, Tensor, Tensor], Tensor]  # (g, x, w) -> gx
    conv: Conv | None = None  # None: a matrix, x (N, F)

    @property
    def matrix(self) -> bool:
        """Fully connected?"""
        return self.conv is None


def linear_layer() -> WeightedLayer:
    """Return the fully connected layer of x (N, F)."""

    def backward(g: Tensor, x: Tensor, w: Tensor, need_x: bool) -> tuple[Tensor | None, Tensor]:
        return (matrix_input(g, w) if need_x else None), matrix_weight(g, x)

    return WeightedLayer(matrix, backward, lambda g, x, w: matrix_input(g, w))


def conv_layer(
    rank: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> WeightedLayer | None:
    """Return the convolution of x (N, C, *size); None where its arguments have no fast form."""
    if isinstance(padding, str) or groups != 1:
        return None
    s, p, d = (
        (v,) * rank if isinstance(v, int) else tuple(v) * (rank if len(v) == 1 else 1)
        for v in (stride, padding, dilation)
    )
    conv = Conv(s, p, d)

    def input_gradient(g: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return channels_last(product_input(g, x.shape[2:], w, conv))

    def backward(g: Tensor, x: Tensor, w: Tensor, need_x: bool) -> tuple[Tensor | None, Tensor]:
        w = channels_last(w)
        return (input_gradient(g, x, w) if need_x else None), product_weight(g, x, w, conv)

    return WeightedLayer(lambda x, w, b: product(x, w, b, conv), backward, input_gradient, conv)


def channels_last(value: Tensor) -> Tensor:
    """Return images in NHWC order, which is fastest for the convolution kernels; other ranks as they are.

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
    """Return (N, C, *size) as rows (N * size, C): a view where memory is in NHWC order."""
    if value.dim() == 2:
        return value.contiguous()
    return value.movedim(1, -1).reshape(-1, value.shape[1]).contiguous()


def from_rows(rows: Tensor, examples: int, size: torch.Size) -> Tensor:
    """Undo ``to_rows``, without a copy."""
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
    """Return the indices that PyTorch's flatten (NCHW) gives to units numbered in NHWC order."""
    return on % channels * positions + on // channels


def reorder(value: Tensor, outer: int, inner: int) -> Tensor:
    """Reorder columns (N, outer * inner) with ``inner`` innermost to ``outer`` innermost."""
    images = value.reshape(-1, outer, 1, inner).permute(0, 3, 1, 2)  # (N, inner, outer, 1)
    return channels_outermost(images).reshape(value.shape[0], -1)


def unflattened(on: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Return the channels (c,) that are alive and each unit's index among their units (NHWC order)."""
    alive = torch.zeros(channels, dtype=torch.bool, device=on.device)
    alive[on % channels] = True
    kept = alive.nonzero().squeeze(1)
    rank = alive.cumsum(0) - 1
    return kept, on // channels * kept.numel() + rank[on % channels]
