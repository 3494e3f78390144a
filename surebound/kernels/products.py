"""Convolutions with channels innermost and their gradients: compiled, for processors on which that is faster.

Sums are taken in another order than PyTorch's, so the two agree to rounding only. Every function returns None where
the caller has to use PyTorch's operator: no compiler, another processor, other strides, a border of zeros.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from surebound.kernels.build import library

#: Places in an image are counted in 32 bits.
LARGEST = 2**31 - 1
#: With fewer numbers in the row of a window the gradient of a weight leaves most of a tile empty.
SHORTEST = 16


def product(
    x: Tensor, w: Tensor, b: Tensor | None, stride: Sequence[int], pad: Sequence[int]
) -> Tensor | None:
    """The convolution of x (N, C, H, W) with w (O, C, kh, kw); None: not here."""
    kernels = None if _border(pad) else _kernels(x, w)
    if kernels is None or (b is not None and not b.is_contiguous()):
        return None
    shape = _shape(x, w, stride, pad)
    out = _images(x, x.shape[0], w.shape[0], shape[4], shape[5])
    failed = kernels.surebound_product(
        x.data_ptr(), w.data_ptr(), None if b is None else b.data_ptr(), *shape, out.data_ptr(), _threads()
    )
    return None if failed else out


def input_gradient(
    g: Tensor, size: Sequence[int], w: Tensor, stride: Sequence[int], pad: Sequence[int]
) -> Tensor | None:
    """The gradient of images (N, C, *size) from that g (N, O, oh, ow) of the convolution; None: not here."""
    kernels = None if _border(pad) else _kernels(g, w)
    if kernels is None:
        return None
    out = _images(g, g.shape[0], w.shape[1], *size)
    if out.numel() > LARGEST:
        return None
    shape = _shape(out, w, stride, pad)
    failed = kernels.surebound_product_input(g.data_ptr(), w.data_ptr(), *shape, out.data_ptr(), _threads())
    return None if failed else out


def weight_gradient(
    g: Tensor, x: Tensor, w: Tensor, stride: Sequence[int], pad: Sequence[int]
) -> Tensor | None:
    """The gradient of w; None: not here."""
    kernels = _kernels(g, x) if w.shape[1] * w.shape[3] >= SHORTEST else None
    if kernels is None:
        return None
    out = _images(w, *w.shape)
    shape = _shape(x, w, stride, pad)
    failed = kernels.surebound_product_weight(g.data_ptr(), x.data_ptr(), *shape, out.data_ptr(), _threads())
    return None if failed else out


def _border(pad: Sequence[int]) -> bool:
    """Has the image a border of zeros? PyTorch is at least as fast then, but for the gradient of a weight."""
    return any(pad)


def _shape(x: Tensor, w: Tensor, stride: Sequence[int], pad: Sequence[int]) -> tuple[int, ...]:
    n, c, h, width = x.shape
    o, _, kh, kw = w.shape
    (sy, sx), (py, px) = stride, pad
    oh, ow = (h + 2 * py - kh) // sy + 1, (width + 2 * px - kw) // sx + 1
    return n, h, width, c, oh, ow, o, kh, kw, sy, sx, py, px


def _images(like: Tensor, n: int, c: int, h: int, w: int) -> Tensor:
    """(N, C, H, W) with channels innermost, not filled in."""
    return like.new_empty(n, h, w, c).permute(0, 3, 1, 2)


def _kernels(*values: Tensor) -> ctypes.CDLL | None:
    plain = all(
        v.dim() == 4
        and v.dtype == torch.float32
        and v.device.type == "cpu"
        and 0 < v.numel() <= LARGEST
        and v.stride() == _innermost(v.shape)
        for v in values
    )
    kernels = library() if plain else None
    return kernels if kernels is not None and _pays() else None


def _innermost(shape: torch.Size) -> tuple[int, int, int, int]:
    _, c, h, w = shape
    return c * h * w, 1, w * c, c


@lru_cache(maxsize=1)
def _pays() -> bool:
    kernels = library()
    return kernels is not None and bool(kernels.surebound_products_pay())


def _threads() -> int:
    return torch.get_num_threads()
