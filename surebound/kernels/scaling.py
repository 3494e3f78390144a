"""BatchNorm of a training step on rows (R, C).

Compiled sums over rows have other roundings than PyTorch's, but the same whatever the number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.kernels.build import Entry
from surebound.kernels.kernel import Declined, kernel

#: From so many numbers on a pass is compiled.
WORTH = 1 << 15


def _column_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    mean = rows.mean(0)  # two passes: ten times as fast as torch.var_mean over the outer axis
    return mean, (rows - mean).square_().mean(0)


@kernel(reference=_column_moments, plain="rows", worth=WORTH)
def column_moments(run: Entry, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance (C,) of rows (R, C)."""
    mean, variance = rows.new_empty(rows.shape[1]), rows.new_empty(rows.shape[1])
    if run(rows, *rows.shape, mean, variance):
        raise Declined
    return mean, variance


def _column_sums(g: Tensor, x: Tensor, g_radius: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return g.sum(0), (g * x).sum(0), (g_radius * radius).sum(0)


@kernel(reference=_column_sums, plain="g_radius radius g x", worth=WORTH)
def column_sums(run: Entry, g: Tensor, x: Tensor, g_radius: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return sums over rows (C,): of g, of g x (both (P R, C)), of g_radius radius (both (R, C))."""
    rows, columns = radius.shape
    sums = radius.new_empty(3, columns)
    if run(g, x, g_radius, radius, g.shape[0] // rows, rows, columns, sums):
        raise Declined
    return sums[0], sums[1], sums[2]


def _scaled_gradient(
    g: Tensor, x: Tensor, rows: int, scale: Tensor, slope: Tensor | None, offset: Tensor | None
) -> Tensor:
    scaled = g * scale
    if slope is None or offset is None:
        return scaled if x.shape[0] == g.shape[0] else torch.cat([torch.zeros_like(scaled), scaled])
    if x.shape[0] == g.shape[0]:
        scaled[:rows].add_(offset).addcmul_(x[:rows], slope)
        return scaled
    return torch.cat([torch.addcmul(offset, x[:rows], slope), scaled])


@kernel(reference=_scaled_gradient, plain="x g scale slope offset", worth=WORTH)
def scaled_gradient(
    run: Entry, g: Tensor, x: Tensor, rows: int, scale: Tensor, slope: Tensor | None, offset: Tensor | None
) -> Tensor:
    """Return g scale, and on the clean rows, the first ``rows`` of x, x slope + offset besides: as x.

    g (P' R, C) may lack the clean rows of x (P R, C).
    """
    out = torch.empty_like(x)
    run(g, x, scale, slope, offset, g.shape[0] // rows, x.shape[0] // rows, rows, x.shape[1], out)
    return out
