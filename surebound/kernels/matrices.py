"""Products with a matrix and their gradients; compiled for processors whose vectors the usual library does not fill.

Compiled sums are taken in another order than PyTorch's, so the two agree to rounding only.
"""

from __future__ import annotations

from functools import lru_cache

import torch.nn.functional as F
from torch import Tensor

from surebound.kernels.build import Entry, library
from surebound.kernels.kernel import Declined, kernel

#: Places are counted in 32 bits.
LARGEST = 2**31 - 1
#: Fewer multiplications take less time than it takes to lay out the matrix for them.
FEWEST = 1 << 20
#: With fewer rows or columns most of a tile is empty.
NARROWEST = 16


def _matrix(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return F.linear(x, w, b)


def _matrix_fits(x: Tensor, w: Tensor, b: Tensor | None) -> bool:
    return _worth(x, w, w.shape[0]) and _pay()


@kernel(reference=_matrix, plain="x w b", fits=_matrix_fits)
def matrix(run: Entry, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Return x (N, C) times w (O, C) transposed, plus b (O,)."""
    out = x.new_empty(x.shape[0], w.shape[0])
    if run(x, w, b, *x.shape, w.shape[0], out):
        raise Declined
    return out


def _matrix_input(g: Tensor, w: Tensor) -> Tensor:
    return g @ w


def _matrix_input_fits(g: Tensor, w: Tensor) -> bool:
    return _worth(g, w, w.shape[-1]) and _pay()


@kernel(reference=_matrix_input, plain="g w", fits=_matrix_input_fits)
def matrix_input(run: Entry, g: Tensor, w: Tensor) -> Tensor:
    """Return the gradient of x (N, C) from that g (N, O) of the product: g w."""
    out = g.new_empty(g.shape[0], w.shape[1])
    if run(g, w, g.shape[0], w.shape[1], w.shape[0], out):
        raise Declined
    return out


def _matrix_weight(g: Tensor, x: Tensor) -> Tensor:
    return g.t() @ x


def _matrix_weight_fits(g: Tensor, x: Tensor) -> bool:
    return _worth(g, x, x.shape[-1]) and _pay()


@kernel(reference=_matrix_weight, plain="g x", fits=_matrix_weight_fits)
def matrix_weight(run: Entry, g: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of w (O, C) from that g (N, O) of the product of x (N, C): g^T x."""
    out = g.new_empty(g.shape[1], x.shape[1])
    if run(g, x, *x.shape, g.shape[1], out):
        raise Declined
    return out


def _worth(one: Tensor, other: Tensor, out: int) -> bool:
    """Are these, whose product has ``out`` columns, matrices of more than a few vectors whose places can be counted?"""
    if one.dim() != 2 or other.dim() != 2:
        return False
    sizes = (*one.shape, *other.shape)
    return min(sizes) >= NARROWEST and max(one.numel(), other.numel()) <= LARGEST and one.numel() * out >= FEWEST


@lru_cache(maxsize=1)
def _pay() -> bool:
    """Are they faster than PyTorch's on this processor?"""
    entries = library()
    return entries is not None and bool(entries["matrices_pay"]())
