"""BatchNorm of a training step on rows (R, C): compiled; None where that is not possible, and PyTorch does it.

Its sums over rows have other roundings than PyTorch's, but the same whatever the number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.kernels.build import library
from surebound.kernels.rows import at

#: From so many numbers on a pass is compiled.
WORTH = 1 << 15


def column_moments(rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mean and biased variance (C,) of rows (R, C)."""
    kernels = library() if _plain(rows) else None
    if kernels is None:
        return None
    mean, variance = rows.new_empty(rows.shape[1]), rows.new_empty(rows.shape[1])
    failed = kernels.surebound_column_moments(
        rows.data_ptr(), *rows.shape, mean.data_ptr(), variance.data_ptr(), torch.get_num_threads()
    )
    return None if failed else (mean, variance)


def column_sums(
    g: Tensor, x: Tensor, g_radius: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Sums over rows (C,): of g, of g x (both (P R, C)), of g_radius radius (both (R, C))."""
    kernels = library() if _plain(g_radius, radius, g, x) else None
    if kernels is None:
        return None
    rows, columns = radius.shape
    sums = radius.new_empty(3, columns)
    failed = kernels.surebound_column_sums(
        g.data_ptr(), x.data_ptr(), g_radius.data_ptr(), radius.data_ptr(), g.shape[0] // rows, rows, columns,
        sums.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return None if failed else (sums[0], sums[1], sums[2])


def scaled_gradient(
    g: Tensor, x: Tensor, rows: int, scale: Tensor, slope: Tensor | None, offset: Tensor | None
) -> Tensor | None:
    """g scale, and on the clean rows, which are the first ``rows`` of x, x slope + offset besides: as x.

    g (P' R, C) may lack the clean rows of x (P R, C).
    """
    kernels = library() if _plain(x, g) else None
    if kernels is None:
        return None
    out = torch.empty_like(x)
    kernels.surebound_scaled_gradient(
        g.data_ptr(), x.data_ptr(), scale.data_ptr(), at(slope), at(offset), g.shape[0] // rows, x.shape[0] // rows,
        rows, x.shape[1], out.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return out


def _plain(first: Tensor, *others: Tensor) -> bool:
    """Enough of them, float32, contiguous, in main memory?"""
    return first.numel() >= WORTH and all(
        v.dtype == torch.float32 and v.device.type == "cpu" and v.is_contiguous() for v in (first, *others)
    )
