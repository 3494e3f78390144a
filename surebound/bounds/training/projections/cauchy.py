"""l1 norms from Cauchy random projections: the median of |r.v| over k rows r of independent Cauchy variables.

r.v is Cauchy with the l1 norm of v as its scale, and half of a Cauchy variable's mass lies within its scale (Indyk
2006; Wong et al. 2018, section 3.2). The sample median is a little too large on average; dividing by what
it is for a scale of 1 makes the estimate unbiased (Li, Hastie & Church 2007).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from surebound.kernels.columns import MOST_COLUMNS, medians


def cauchy(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    """Independent standard Cauchy variables, drawn on the generator's device in the dtype of ``like``.

    In float32 they end at some 10^7, far from where a median looks.
    """
    u = torch.rand(shape, generator=generator, dtype=like.dtype, device=generator.device)
    return u.sub_(0.5).mul_(math.pi).tan_().to(like)


@lru_cache
def median_of_half_cauchy(count: int) -> float:
    """The expectation of the sample median of |x| for ``count`` standard Cauchy variables; infinite below 3.

    The j-th of k order statistics of a uniform variable is Beta(j, k - j + 1), and |x| is tan(pi u / 2).
    """
    if count < 3:
        return math.inf
    u = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    total = 0.0
    for j in positions(count):
        log = math.lgamma(count + 1) - math.lgamma(j) - math.lgamma(count - j + 1)
        density = (log + (j - 1) * u.log() + (count - j) * (-u).log1p()).exp()
        total += (density * torch.tan(math.pi * u / 2)).mean().item()
    return total / len(positions(count))


def positions(count: int) -> tuple[int, ...]:
    """The places in order, from 1, of the one or two values in the middle."""
    return ((count + 1) // 2,) if count % 2 else (count // 2, count // 2 + 1)


@lru_cache
def selection_network(count: int) -> tuple[tuple[int, int, bool, bool], ...]:
    """Comparators (i, j, keep the smaller in i, keep the larger in j) that put the middle values in their places.

    Batcher's odd-even merge sort, without what the middle does not depend on.
    """
    size, pairs = 1 << (count - 1).bit_length(), []
    p = 1
    while p < size:
        k = p
        while k >= 1:
            for start in range(k % p, size - k, 2 * k):
                for i in range(start, start + min(k, size - start - k)):
                    if i // (2 * p) == (i + k) // (2 * p) and i + k < count:
                        pairs.append((i, i + k))
            k //= 2
        p *= 2
    wanted, kept = {j - 1 for j in positions(count)}, []
    for i, j in reversed(pairs):
        if i in wanted or j in wanted:
            kept.append((i, j, i in wanted, j in wanted))
            wanted |= {i, j}
    return tuple(reversed(kept))


def middle(columns: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The sum (B, n) of the one or two values in the middle of |columns| (B, K, n), and the columns (B, 1 or 2, n)
    they are found in. Infinite where it is not ``wanted`` (B, n)."""
    count = columns.shape[1]
    at = tuple(j - 1 for j in positions(count))
    if count <= MOST_COLUMNS:
        found = medians(columns.contiguous(), selection_network(count), at, wanted)
        if found is not None:
            return found
    values, places = columns.abs().sort(1)
    total = values[:, at[0] : at[-1] + 1].sum(1)
    if wanted is not None:
        total.masked_fill_(~wanted, torch.inf)
    return total, places[:, at[0] : at[-1] + 1]


def middle_gradient(columns: Tensor, places: Tensor, g: Tensor, more: Tensor | None = None) -> Tensor:
    """The gradient (B, K, n) of the columns from that g (B, n) of ``middle``'s sums, added to what else they have."""
    places = places.long()
    signed = columns.gather(1, places).sign_().mul_(g.unsqueeze(1))
    result = torch.zeros_like(columns) if more is None else more.clone()
    return result.scatter_add_(1, places, signed)


class _Norms(torch.autograd.Function):
    """columns (B, k, n) -> estimated l1 norms (B, n), and the columns again, so that gradients meet here once."""

    @staticmethod
    def forward(ctx: Any, columns: Tensor) -> tuple[Tensor, Tensor]:
        total, places = middle(columns)
        count = columns.shape[1]
        ctx.save_for_backward(columns, places)
        ctx.scale = 1.0 / (median_of_half_cauchy(count) * len(positions(count)))
        return total * ctx.scale, columns.view_as(columns)

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_columns: Tensor) -> Any:
        columns, places = ctx.saved_tensors
        return middle_gradient(columns, places, g * ctx.scale, g_columns)


def estimated_norms(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Estimates (B, *n) of the l1 norms that columns (B, k, *n) are projections of; use the columns returned."""
    flat = columns.flatten(2)
    norms, same = _Norms.apply(flat)  # type: ignore[no-untyped-call]
    return norms.reshape(columns.shape[0], *columns.shape[2:]), same.reshape(columns.shape)
