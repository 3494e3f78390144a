"""Adjoints: of any linear operator by differentiating it, where nothing faster is known; of broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def vjp_adjoint(fn: Callable[..., Tensor], a: Tensor, in_shape: torch.Size, *args: Any, **kwargs: Any) -> Tensor:
    """Return A^T a for a (S, B, *out) and fn affine in its first argument of shape ``in_shape`` (B, *in)."""
    zeros = torch.zeros(in_shape, dtype=a.dtype, device=a.device)
    pull: Any = torch.func.vjp(lambda x: fn(x, *args, **kwargs), zeros)[1]
    result: Tensor = torch.vmap(lambda row: pull(row)[0])(a) if len(a) else a.new_zeros(0, *in_shape)
    return result


def looped_adjoint(fn: Callable[..., Tensor], a: Tensor, in_shape: torch.Size, *args: Any, **kwargs: Any) -> Tensor:
    """Compute ``vjp_adjoint`` row by row, for operators whose gradient PyTorch cannot batch."""
    zeros = torch.zeros(in_shape, dtype=a.dtype, device=a.device)
    pull: Any = torch.func.vjp(lambda x: fn(x, *args, **kwargs), zeros)[1]
    return torch.stack([pull(row)[0] for row in a]) if len(a) else a.new_zeros(0, *in_shape)


def reduce_to(a: Tensor, in_shape: torch.Size) -> Tensor:
    """Sum a (S, B, *out) over the axes along which the operator broadcast an argument of shape (B, *in)."""
    target = torch.Size((a.shape[0], *in_shape))
    extra = a.dim() - len(target)
    if extra:
        a = a.sum(dim=tuple(range(1, 1 + extra)))
    axes = tuple(i for i, (have, want) in enumerate(zip(a.shape, target, strict=True)) if have != want)
    return a.sum(dim=axes, keepdim=True) if axes else a
