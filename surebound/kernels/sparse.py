"""Rows of an example through a convolution or a matrix and back, without entries that are 0 in all of its rows.

Rows (S B, *value), the S rows of an example B apart: coefficients of dead units are 0 in all of them. Images have NHWC
order. Compiled sums are taken in another order than PyTorch's, so the two agree to rounding only. Where the rows lie
otherwise, or so few entries are 0 that leaving them out does not pay, the product is dense (``products.py``). That is
counted, not timed: a resumed run does the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.kernels.build import Entry
from surebound.kernels.kernel import Declined, is_float32, kernel
from surebound.kernels.products import LARGEST, Conv, images, product, product_input, product_weight

#: Rows of an example that make up for the lists of what is not 0.
FEWEST_ROWS = 3
#: Left out when at most this share of the entries is not 0; for the gradient of a weight.
PAYS_BELOW, WEIGHT_PAYS_BELOW = 0.85, 0.6


@dataclass(frozen=True)
class Live:
    """Rows, and which entries are not 0 in some row of an example."""

    rows: Tensor  # (S B, *value)
    mask: Tensor | None  # (B, n) uint8; None: not counted, taken for all
    some: Tensor | None  # (n,) bool: in some example
    share: float

    @property
    def columns(self) -> Tensor | None:
        """The entries (m,) that are not 0 in some example; None: most of them."""
        if self.some is None or self.share > PAYS_BELOW:
            return None
        on = self.some.nonzero().squeeze(1)
        return on if on.numel() <= PAYS_BELOW * self.some.numel() else None


def _live(rows: Tensor, count: int) -> Live:
    return Live(rows, None, None, 1.0)


@kernel(reference=_live, fits=lambda rows, count: count >= FEWEST_ROWS and _fit(rows))
def live(run: Entry, rows: Tensor, count: int) -> Live:
    """Find what is not 0 in ``rows`` (S B, *value), S = ``count``."""
    batch, n = rows.shape[0] // count, math.prod(rows.shape[1:])
    mask, some = rows.new_empty(batch, n, dtype=torch.uint8), rows.new_empty(n, dtype=torch.bool)
    return Live(rows, mask, some, run(rows, count, batch, n, mask, some) / (batch * n))


def _adjoint(a: Live, weight: Tensor, size: Sequence[int], conv: Conv | None) -> Tensor:
    return a.rows @ weight if conv is None else product_input(a.rows, size, weight, conv)


@kernel(reference=_adjoint, fits=lambda a, weight, size, conv: _pays(a, PAYS_BELOW, conv) and _fit(weight))
def rows_adjoint(run: Entry, a: Live, weight: Tensor, size: Sequence[int], conv: Conv | None) -> Tensor:
    """Return W^T a (S B, C, *size) of rows a (S B, O, ...), weight (O, C, kh, kw); or of a matrix (O, C)."""
    out = images(weight, a.rows.shape[0], weight.shape[1], size)
    return _run(run, a, weight, weight, out, a.rows, out, conv)


def _product(g: Live, weight: Tensor, size: Sequence[int], conv: Conv | None) -> Tensor:
    return g.rows @ weight.t() if conv is None else product(g.rows, weight, None, conv)


@kernel(reference=_product, fits=lambda g, weight, size, conv: _pays(g, PAYS_BELOW, conv) and _fit(weight))
def rows_product(run: Entry, g: Live, weight: Tensor, size: Sequence[int], conv: Conv | None) -> Tensor:
    """Return W g (S B, O, *size) of rows g (S B, C, ...)."""
    out = images(weight, g.rows.shape[0], weight.shape[0], size)
    return _run(run, g, weight, weight, g.rows, out, out, conv)


def _weight(a: Live, g: Tensor, weight: Tensor, conv: Conv) -> Tensor:
    return product_weight(a.rows, g, weight, conv)


@kernel(reference=_weight, fits=lambda a, g, weight, conv: _pays(a, WEIGHT_PAYS_BELOW, conv) and _fit(g))
def rows_weight(run: Entry, a: Live, g: Tensor, weight: Tensor, conv: Conv) -> Tensor:
    """Return the gradient of the weight in W^T a (``rows_adjoint``) from that g (S B, C, ...) of its value."""
    out = images(weight, weight.shape[0], weight.shape[1], weight.shape[2:])
    return _run(run, a, g, out, g, a.rows, out, conv)


def _run(
    run: Entry,
    live: Live,
    second: Tensor,
    weight: Tensor,
    inside: Tensor,
    outside: Tensor,
    to: Tensor,
    conv: Conv | None,
) -> Tensor:
    """Call a compiled pass; ``inside`` and ``outside`` have the shapes of the operator's operand and result."""
    batch = 0 if live.mask is None else live.mask.shape[0]
    (c, *size), (o, *out_size) = inside.shape[1:], outside.shape[1:]
    stride = (1, 1) if conv is None else conv.stride
    shape = (*_pair(size), c, *_pair(out_size), o, *_pair(weight.shape[2:]), *stride)
    if run(live.rows, live.mask, second, live.rows.shape[0] // batch, batch, *shape, to):
        raise Declined
    return to


def _pays(live: Live, below: float, conv: Conv | None) -> bool:
    return live.mask is not None and live.share <= below and (conv is None or conv.unpadded)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    """Return two sizes, or for a matrix those of one pixel."""
    return (int(values[0]), int(values[1])) if len(values) else (1, 1)


def _fit(value: Tensor) -> bool:
    """Is it float32 in main memory without gaps, in NHWC order?"""
    fits = is_float32(value) and 0 < value.numel() <= LARGEST
    return fits and value.dim() in (2, 4) and value.movedim(1, -1).is_contiguous()
