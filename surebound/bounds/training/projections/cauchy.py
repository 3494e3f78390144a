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

from surebound.kernels.medians import middle, positions


def cauchy(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    """Draw independent standard Cauchy variables on the generator's device in the dtype of ``like``.

    In float32 they end at some 10^7, far from where a median looks.
    """
    u = torch.rand(shape, generator=generator, dtype=like.dtype, device=generator.device)
    return u.sub_(0.5).mul_(math.pi).tan_().to(like)


@lru_cache
def median_of_half_cauchy(count: int) -> float:
    """Return the expectation of the sample median of |x| for ``count`` standard Cauchy variables; infinite below 3.

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


def unbiased(count: int) -> float:
    """Return the factor that makes the sum of the middle values of so many columns an unbiased estimate."""
    return 1.0 / (median_of_half_cauchy(count) * len(positions(count)))


def middle_gradient(columns: Tensor, places: Tensor, g: Tensor, more: Tensor | None = None) -> Tensor:
    """Return the gradient (K, B, n) of the columns from that g (B, n) of ``middle``'s sums, added to ``more``."""
    places = places.long()
    signed = columns.gather(0, places).sign_().mul_(g)
    result = torch.zeros_like(columns) if more is None else more.clone()
    return result.scatter_add_(0, places, signed)


class _Norms(torch.autograd.Function):
    """columns (k, B, n) -> estimated l1 norms (B, n), and the columns again, so that gradients meet here once."""

    @staticmethod
    def forward(ctx: Any, columns: Tensor) -> tuple[Tensor, Tensor]:
        total, places = middle(columns)
        count = columns.shape[0]
        ctx.save_for_backward(columns, places)
        ctx.scale = unbiased(count)
        return total * ctx.scale, columns.view_as(columns)

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_columns: Tensor) -> Any:
        columns, places = ctx.saved_tensors
        return middle_gradient(columns, places, g * ctx.scale, g_columns)


def estimated_norms(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Estimate the l1 norms (B, *n) that columns (k, B, *n) are projections of; use the columns returned."""
    flat = columns.flatten(2).contiguous()
    norms, same = _Norms.apply(flat)  # type: ignore[no-untyped-call]
    return norms.reshape(columns.shape[1:]), same.reshape(columns.shape)
