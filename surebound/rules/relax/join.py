"""Tensors put together: every coefficient goes back to the part it came from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import several_sums
from surebound.rules.registry import Context
from surebound.rules.relax.lines import Index, Pulled


@dataclass(frozen=True)
class Join:
    """Parts side by side along an axis; constants among them add to the offset."""

    dim: int  # of (B, *out)
    sizes: tuple[int, ...]
    constants: tuple[Tensor | None, ...]  # (B, *part); None for a part that varies
    stacked: bool

    owes = 0.0

    @property
    def loose(self) -> bool:
        return False

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        offset = torch.zeros(a.shape[:2], dtype=torch.float64, device=a.device)
        back = []
        for part, constant in zip(torch.split(a, list(self.sizes), self.dim + 1), self.constants, strict=True):
            if constant is None:
                back.append(part.squeeze(self.dim + 1) if self.stacked else part)
            else:
                product = (part.double() * constant.double()).flatten(2)
                rounding = several_sums(math.prod(product.shape[2:]) + 4, 2)
                offset = offset + product.sum(2) + product.abs().sum(2) * rounding
        return Pulled(tuple(back), offset)

    def forward(self, parts: Sequence[Tensor]) -> Tensor:
        """Join the parts: the operator itself. Constants of a stack have the new axis already."""
        shaped = [
            part.unsqueeze(self.dim) if self.stacked and constant is None else part
            for part, constant in zip(parts, self.constants, strict=True)
        ]
        return torch.cat(shaped, self.dim)

    def select(self, index: Index) -> Join:
        return dataclasses.replace(self, constants=tuple(None if c is None else c[index] for c in self.constants))


def join_parts(ctx: Context, parts: Sequence[Any], dim: int = 0, *, stacked: bool = False) -> Join | None:
    """Relax cat, or stack as a cat of parts with a new axis; not along the batch."""
    rank = len(parts[0].shape) + int(stacked)
    axis = dim % rank
    if axis == 0:
        return None
    shaped = [p if isinstance(p, Interval) or not stacked else p.unsqueeze(axis) for p in parts]
    sizes = tuple(1 if stacked else int(p.shape[axis]) for p in parts)
    return Join(axis, sizes, tuple(None if isinstance(p, Interval) else p for p in shaped), stacked)
