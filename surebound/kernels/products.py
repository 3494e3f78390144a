"""Convolutions and their two gradients; in NHWC order compiled for processors on which that is faster.

Compiled sums are taken in another order than PyTorch's, so the two agree to rounding only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import grad

from surebound.kernels.blocks import fold
from surebound.kernels.build import Entry, library
from surebound.kernels.kernel import Declined, is_float32, kernel

#: Places in an image are counted in 32 bits.
LARGEST = 2**31 - 1
#: With fewer numbers in the row of a window the gradient of a weight leaves most of a tile empty.
SHORTEST = 16
#: Up to so many input channels the usual kernels leave most of a vector empty when they compute their gradient.
FEW_CHANNELS = 12
#: Of images of so many positions PyTorch's gradients in float64, a small product for each, take twice as long.
SMALL_IMAGE = 16


@dataclass(frozen=True)
class Conv:
    """How a convolution moves its window, one number for each axis."""

    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def ungrouped(self) -> bool:
        """Two axes, neither dilation nor groups?"""
        return self.dilation == (1, 1) and self.groups == 1

    @property
    def unpadded(self) -> bool:
        """Two axes, neither dilation nor groups nor a border of zeros?"""
        return self.ungrouped and not any(self.pad)


def _product(x: Tensor, w: Tensor, b: Tensor | None, conv: Conv) -> Tensor:
    zero = [0] * len(conv.stride)
    return torch.convolution(x, w, b, conv.stride, conv.pad, conv.dilation, False, zero, conv.groups)


def _product_fits(x: Tensor, w: Tensor, b: Tensor | None, conv: Conv) -> bool:
    # PyTorch is at least as fast with a border of zeros, but for the gradient of a weight.
    return conv.unpadded and _fit(x, w) and (b is None or b.is_contiguous()) and is_float32(b)


@kernel(reference=_product, fits=_product_fits)
def product(run: Entry, x: Tensor, w: Tensor, b: Tensor | None, conv: Conv) -> Tensor:
    """Return the convolution of x (N, C, *size) with w (O, C / groups, *window)."""
    shape = _shape(x, w, conv)
    out = images(x, x.shape[0], w.shape[0], shape[4:6])
    if run(x, w, b, *shape, out):
        raise Declined
    return out


def _product_input(g: Tensor, size: Sequence[int], w: Tensor, conv: Conv) -> Tensor:
    few = w.shape[1] <= FEW_CHANNELS and w[0].numel() <= 8 * w.shape[0]  # not much larger than g itself
    if conv.ungrouped and few and g.is_cpu:
        return by_windows(g, size, w, conv)
    if conv.ungrouped and g.is_cpu and g.dtype == torch.float64 and g.shape[2:].numel() <= SMALL_IMAGE:
        return by_windows(g.contiguous(memory_format=torch.channels_last), size, w, conv)
    sizes = zip(size, g.shape[2:], w.shape[2:], conv.stride, conv.pad, conv.dilation, strict=True)
    # What the convolution's stride left over at the far end gets 0.
    left_over = [n - ((o - 1) * s - 2 * p + d * (k - 1) + 1) for n, o, k, s, p, d in sizes]
    return torch.convolution(g, w, None, conv.stride, conv.pad, conv.dilation, True, left_over, conv.groups)


def by_windows(g: Tensor, size: Sequence[int], w: Tensor, conv: Conv) -> Tensor:
    """Return the gradient of images by products of matrices and a sum of windows (col2im); no dilation, no groups."""
    (h, wide), (kh, kw), (sy, sx), (py, px) = size, w.shape[2:], conv.stride, conv.pad
    if g.is_contiguous() and g.shape[2:].numel() > 1:  # plane by plane: no copy, a small product per example
        columns = torch.matmul(w.flatten(1).t(), g.flatten(2))  # (N, C window, positions)
        return F.fold(columns, (h, wide), (kh, kw), 1, (py, px), (sy, sx))
    windows = g.movedim(1, -1).reshape(-1, g.shape[1]) @ w.movedim(1, -1).flatten(1)  # (N positions, window C)
    cut = windows.view(g.shape[0], *g.shape[2:], kh, kw, w.shape[1])
    return fold(cut, (h, wide), (sy, sx), (py, px)).movedim(-1, 1)


def _input_fits(g: Tensor, size: Sequence[int], w: Tensor, conv: Conv) -> bool:
    return conv.unpadded and _fit(g, w) and g.shape[0] * w.shape[1] * size[0] * size[1] <= LARGEST


@kernel(reference=_product_input, fits=_input_fits)
def product_input(run: Entry, g: Tensor, size: Sequence[int], w: Tensor, conv: Conv) -> Tensor:
    """Return the gradient of images (N, C, *size) from that g (N, O, ...) of the convolution: W^T g."""
    out = images(g, g.shape[0], w.shape[1], size)
    if run(g, w, *_shape(out, w, conv), out):
        raise Declined
    return out


def _product_weight(g: Tensor, x: Tensor, w: Tensor, conv: Conv) -> Tensor:
    weight_gradient = (grad.conv1d_weight, grad.conv2d_weight, grad.conv3d_weight)[len(conv.stride) - 1]
    moves = conv.stride, conv.pad, conv.dilation, conv.groups
    found: Tensor = weight_gradient(x, w.shape, g, *moves)  # type: ignore[no-untyped-call]
    return found


def _weight_fits(g: Tensor, x: Tensor, w: Tensor, conv: Conv) -> bool:
    return conv.ungrouped and w.shape[1] * w.shape[-1] >= SHORTEST and _fit(g, x)


@kernel(reference=_product_weight, fits=_weight_fits)
def product_weight(run: Entry, g: Tensor, x: Tensor, w: Tensor, conv: Conv) -> Tensor:
    """Return the gradient of w from that g of the convolution of x."""
    out = images(w, w.shape[0], w.shape[1], w.shape[2:])
    if run(g, x, *_shape(x, w, conv), out):
        raise Declined
    return out


def _shape(x: Tensor, w: Tensor, conv: Conv) -> tuple[int, ...]:
    n, c, h, width = x.shape
    o, _, kh, kw = w.shape
    (sy, sx), (py, px) = conv.stride, conv.pad
    oh, ow = (h + 2 * py - kh) // sy + 1, (width + 2 * px - kw) // sx + 1
    return n, h, width, c, oh, ow, o, kh, kw, sy, sx, py, px


def images(like: Tensor, n: int, c: int, size: Sequence[int]) -> Tensor:
    """Return room for (N, C, *size) in NHWC order."""
    return like.new_empty(n, *size, c).movedim(-1, 1)


def _fit(*values: Tensor) -> bool:
    plain = is_float32(*values) and all(
        v.dim() == 4 and 0 < v.numel() <= LARGEST and v.movedim(1, -1).is_contiguous() for v in values
    )
    return plain and _pay()


@lru_cache(maxsize=1)
def _pay() -> bool:
    """Are they faster than PyTorch's on this processor?"""
    entries = library()
    return entries is not None and bool(entries["products_pay"]())
