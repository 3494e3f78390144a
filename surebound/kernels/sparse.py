"""Rows of an example through a convolution or a matrix and back, without entries that are 0 in all of its rows.

Rows (S B, *value), the S rows of an example B apart: coefficients at units that are off are 0 in all of them. Images
have channels innermost in memory. Sums are taken in another order than PyTorch's, so the two agree to rounding only.
Every function returns None where the caller has to use a dense product: no compiler, other strides, one row alone, or
so few zeros that leaving them out does not pay. That is counted, not timed: a resumed run does the same.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.kernels.build import library

#: Rows of an example that make up for the lists of what is not 0.
FEWEST_ROWS = 3
#: Left out when at most this share of the entries is not 0; for the gradient of a weight.
PAYS_BELOW, WEIGHT_PAYS_BELOW = 0.85, 0.6
#: Places are counted in 32 bits.
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Live:
    """Rows, and which entries are not 0 in some row of an example."""

    rows: Tensor  # (S B, *value)
    mask: Tensor  # (B, n) uint8
    some: Tensor  # (n,) bool: in some example
    share: float
    kernels: ctypes.CDLL

    @classmethod
    def of(cls, value: Tensor, rows: int) -> Live | None:
        """What is not 0 in ``value`` (S B, *value), S = ``rows``; None: most of it, or nobody can tell."""
        kernels = library() if rows >= FEWEST_ROWS and _plain(value) else None
        if kernels is None:
            return None
        batch, n = value.shape[0] // rows, math.prod(value.shape[1:])
        mask, some = value.new_empty(batch, n, dtype=torch.uint8), value.new_empty(n, dtype=torch.bool)
        found = kernels.surebound_live(
            value.data_ptr(), rows, batch, n, mask.data_ptr(), some.data_ptr(), torch.get_num_threads()
        )
        share = found / (batch * n)
        return cls(value, mask, some, share, kernels) if share <= PAYS_BELOW else None

    def adjoint(self, weight: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor | None:
        """W^T a (S B, C, *size) of rows a (S B, O, ...), weight (O, C, kh, kw); or of a matrix weight (O, C)."""
        out = _images(weight, self.rows.shape[0], weight.shape[1], size)
        return self._run("adjoint", weight, out, self.rows, out, stride)

    def product(self, weight: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor | None:
        """W g (S B, O, *size) of rows g (S B, C, ...)."""
        out = _images(weight, self.rows.shape[0], weight.shape[0], size)
        return self._run("product", weight, self.rows, out, out, stride)

    def weight_gradient(self, g: Tensor, weight: Tensor, stride: Sequence[int]) -> Tensor | None:
        """Of ``adjoint`` by the weight, from the gradient g (S B, C, ...) of its value."""
        if self.share > WEIGHT_PAYS_BELOW:
            return None
        out = _images(weight, weight.shape[0], weight.shape[1], weight.shape[2:])
        return self._run("weight", g, g, self.rows, out, stride)

    @property
    def columns(self) -> Tensor | None:
        """The entries (m,) that are not 0 in some example; None: most of them."""
        on = self.some.nonzero().squeeze(1)
        return on if on.numel() <= PAYS_BELOW * self.some.numel() else None

    def _run(
        self, which: str, second: Tensor, inside: Tensor, outside: Tensor, to: Tensor, stride: Sequence[int]
    ) -> Tensor | None:
        """``inside`` and ``outside``: values of the shape of the operator's operand and result."""
        weight = to if which == "weight" else second
        if not _plain(second) or not _plain(weight):
            return None
        batch = self.mask.shape[0]
        (c, *size), (o, *out_size) = inside.shape[1:], outside.shape[1:]
        shape = (
            *_pair(size), c, *_pair(out_size), o, *_pair(weight.shape[2:]), *_pair(stride)
        )  # fmt: skip
        kernel = getattr(self.kernels, f"surebound_rows_{which}")
        failed = kernel(
            self.rows.data_ptr(), self.mask.data_ptr(), second.data_ptr(), self.rows.shape[0] // batch, batch, *shape,
            to.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return None if failed else to


def _pair(values: Sequence[int]) -> tuple[int, int]:
    """Two sizes, or those of a matrix: one pixel."""
    return (int(values[0]), int(values[1])) if len(values) else (1, 1)


def _images(like: Tensor, n: int, c: int, size: Sequence[int]) -> Tensor:
    """(N, C, *size) with channels innermost, not filled in."""
    return like.new_empty(n, *size, c).movedim(-1, 1)


def _plain(value: Tensor) -> bool:
    """float32 in main memory without gaps, channels innermost?"""
    fits = value.dtype == torch.float32 and value.device.type == "cpu" and 0 < value.numel() <= LARGEST
    return fits and value.dim() in (2, 4) and value.movedim(1, -1).is_contiguous()
