"""Moments of the units that bounds prove active or dead, with gradients, for regularisers of bounds.

Sums (8,) in float64 over all units: of centres; of radii; the number of units whose lower bound is > 0, the sums of
their centres and of the squares of these; the same three of units whose upper bound is < 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from surebound.kernels.build import Entry
from surebound.kernels.kernel import Declined, kernel


def stable_moments(center: Tensor, radius: Tensor) -> Tensor:
    """Return the sums over bounds center -+ radius (B, ...), differentiable."""
    sums: Tensor = _Moments.apply(center, radius)  # type: ignore[no-untyped-call]
    return sums


def _moments(center: Tensor, radius: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
    center, radius = _scaled(center, radius, scale, shift)
    wide = center.double()
    parts = [wide.sum(), radius.sum(dtype=torch.float64)]
    for chosen in (center - radius > 0, center + radius < 0):
        picked = torch.where(chosen, wide, 0.0)
        parts += [chosen.sum().double(), picked.sum(), picked.square().sum()]
    return torch.stack(parts)


@kernel(reference=_moments, alike="center radius")
def moments(
    run: Entry, center: Tensor, radius: Tensor, scale: Tensor | None = None, shift: Tensor | None = None
) -> Tensor:
    """Return the sums over rows (R, C) of centres c scale + shift and radii r |scale|; or any (B, *) unscaled."""
    sums = center.new_empty(8, dtype=torch.float64)
    if run(center, radius, scale, shift, center.shape[0], center[0].numel(), sums):
        raise Declined
    return sums


def _add_gradient(
    center: Tensor,
    radius: Tensor,
    g: Tensor,
    g_radius: Tensor,
    slopes: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
) -> None:
    center, radius = _scaled(center, radius, scale, shift)
    k = slopes.to(center.dtype)
    g += torch.where(center - radius > 0, k[3] + 2 * k[4] * center, 0.0)
    g += torch.where(center + radius < 0, k[6] + 2 * k[7] * center, 0.0)
    g += k[0]
    g_radius += k[1]


@kernel(reference=_add_gradient, alike="center radius g g_radius")
def add_gradient(
    run: Entry,
    center: Tensor,
    radius: Tensor,
    g: Tensor,
    g_radius: Tensor,
    slopes: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
) -> None:
    """Add the gradient of ``slopes`` . moments(...) with respect to scaled centres and radii to g and g_radius."""
    given = center, radius, scale, shift, center.shape[0], center[0].numel()
    run(*given, slopes.contiguous(), g, g_radius)


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, center: Tensor, radius: Tensor) -> Tensor:
        ctx.save_for_backward(center, radius)
        return moments(center, radius)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, Tensor]:
        center, radius = ctx.saved_tensors
        g, g_radius = torch.zeros_like(center), torch.zeros_like(radius)
        add_gradient(center, radius, g, g_radius, slopes)
        return g, g_radius


def _scaled(center: Tensor, radius: Tensor, scale: Tensor | None, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    if scale is None or shift is None:
        return center, radius
    return center * scale + shift, radius * scale.abs()
