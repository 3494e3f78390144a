"""Moments of the units that bounds prove on or off, with gradients: compiled where possible, elsewhere in PyTorch.

Sums (8,) in float64 over all units: of centres; of radii; the number of units whose lower bound is > 0, the sums of
their centres and of the squares of these; the same three of units whose upper bound is < 0.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from surebound.kernels.ends import alike, at


def stable_moments(center: Tensor, radius: Tensor) -> Tensor:
    """The sums over bounds center -+ radius (B, ...), differentiable."""
    sums: Tensor = _Moments.apply(center, radius)  # type: ignore[no-untyped-call]
    return sums


def moments(
    center: Tensor, radius: Tensor, scale: Tensor | None = None, shift: Tensor | None = None
) -> Tensor:
    """The sums over rows (R, C) of centres c scale + shift and radii r |scale|, scale and shift (C,); or any (B, *)."""
    kernels = _kernels(center, radius)
    if kernels is not None:
        sums = center.new_empty(8, dtype=torch.float64)
        if not kernels.surebound_balance(
            *_given(center, radius, scale, shift), *at(sums), torch.get_num_threads()
        ):
            return sums
    center, radius = _scaled(center, radius, scale, shift)
    wide = center.double()
    parts = [wide.sum(), radius.sum(dtype=torch.float64)]
    for chosen in (center - radius > 0, center + radius < 0):
        picked = torch.where(chosen, wide, 0.0)
        parts += [chosen.sum().double(), picked.sum(), picked.square().sum()]
    return torch.stack(parts)


def add_gradient(
    g: Tensor,
    g_radius: Tensor,
    center: Tensor,
    radius: Tensor,
    slopes: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
) -> None:
    """Add the gradient of ``slopes`` . moments(...) with respect to scaled centres and radii to g and g_radius."""
    kernels = _kernels(center, radius, g, g_radius)
    if kernels is not None:
        kernels.surebound_balance_backward(
            *_given(center, radius, scale, shift),
            *at(slopes.contiguous(), g, g_radius),
            torch.get_num_threads(),
        )
        return
    center, radius = _scaled(center, radius, scale, shift)
    k = slopes.to(center.dtype)
    g += torch.where(center - radius > 0, k[3] + 2 * k[4] * center, 0.0)
    g += torch.where(center + radius < 0, k[6] + 2 * k[7] * center, 0.0)
    g += k[0]
    g_radius += k[1]


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
        add_gradient(g, g_radius, center, radius, slopes)
        return g, g_radius


def _kernels(center: Tensor, *others: Tensor) -> ctypes.CDLL | None:
    return alike(center, *others) if center.dim() and center.numel() else None


def _given(center: Tensor, radius: Tensor, scale: Tensor | None, shift: Tensor | None) -> list[int | None]:
    """The first arguments of both kernels."""
    given = [None if v is None else v.data_ptr() for v in (center, radius, scale, shift)]
    return [*given, center.shape[0], center[0].numel()]


def _scaled(
    center: Tensor, radius: Tensor, scale: Tensor | None, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    if scale is None or shift is None:
        return center, radius
    return center * scale + shift, radius * scale.abs()
