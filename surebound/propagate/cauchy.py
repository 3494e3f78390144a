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

from surebound.numerics import CACHE_ENTRIES

#: More values than this are sorted; up to this many a network of comparisons, each on whole rows, is faster.
SORTED_FROM = 128


def cauchy(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    """Independent standard Cauchy variables, drawn on the generator's device."""
    u = torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)
    return torch.tan(math.pi * (u - 0.5)).to(like)


@lru_cache
def median_of_half_cauchy(count: int) -> float:
    """The expectation of the sample median of |x| for ``count`` standard Cauchy variables; infinite below 3.

    The j-th of k order statistics of a uniform variable is Beta(j, k - j + 1), and |x| is tan(pi u / 2).
    """
    if count < 3:
        return math.inf
    u = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    total = 0.0
    for j in _middle(count):
        log = math.lgamma(count + 1) - math.lgamma(j) - math.lgamma(count - j + 1)
        density = (log + (j - 1) * u.log() + (count - j) * (-u).log1p()).exp()
        total += (density * torch.tan(math.pi * u / 2)).mean().item()
    return total / len(_middle(count))


def _middle(count: int) -> tuple[int, ...]:
    """The positions, from 1, of the one or two values in the middle."""
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
    wanted, kept = {j - 1 for j in _middle(count)}, []
    for i, j in reversed(pairs):
        if i in wanted or j in wanted:
            kept.append((i, j, i in wanted, j in wanted))
            wanted |= {i, j}
    return tuple(reversed(kept))


def middle_values(columns: Tensor) -> tuple[Tensor, ...]:
    """The one or two values in the middle of |columns| (k, n), by position: (n,) each."""
    if columns.shape[0] > SORTED_FROM:
        ordered = columns.abs().sort(0).values
        return tuple(ordered[j - 1] for j in _middle(len(ordered)))
    values = list(columns.abs().unbind(0))
    for i, j, low, high in selection_network(len(values)):
        a, b = values[i], values[j]
        if low:
            values[i] = torch.minimum(a, b)
        if high:
            values[j] = torch.maximum(a, b)
    return tuple(values[j - 1] for j in _middle(len(values)))


class _Norms(torch.autograd.Function):
    """columns (B, k, n) -> estimated l1 norms (B, n), and the columns again, so that gradients meet here once."""

    @staticmethod
    def forward(ctx: Any, columns: Tensor) -> tuple[Tensor, Tensor]:
        batch, count, size = columns.shape
        ends = columns.new_empty(len(_middle(count)), batch, size)
        width = max(1, CACHE_ENTRIES // 4)
        for b in range(batch):
            for n in range(0, size, width):
                found = middle_values(columns[b, :, n : n + width])
                for end, value in zip(ends, found, strict=True):
                    end[b, n : n + width] = value
        ctx.save_for_backward(columns, ends)
        scale = 1.0 / (median_of_half_cauchy(count) * len(ends))
        ctx.scale = scale
        return ends.sum(0) * scale, columns.view_as(columns)

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_columns: Tensor) -> Any:
        columns, ends = ctx.saved_tensors
        result = torch.empty_like(columns)
        for b in range(columns.shape[0]):
            part = columns[b]  # (k, n)
            size = part.abs()
            share = sum(((size == end[b]).to(part.dtype) for end in ends), torch.zeros_like(part))
            torch.addcmul(g_columns[b], share.mul_(part.sign()), g[b] * ctx.scale, out=result[b])
        return result


def estimated_norms(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Estimates (B, *n) of the l1 norms that columns (B, k, *n) are projections of; use the columns returned."""
    flat = columns.flatten(2)
    norms, same = _Norms.apply(flat)  # type: ignore[no-untyped-call]
    return norms.reshape(columns.shape[0], *columns.shape[2:]), same.reshape(columns.shape)
