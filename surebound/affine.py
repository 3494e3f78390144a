"""Affine functions of a few variables, one for every entry of a batch of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class AffineFunction:
    """coefficients . x + offset of N variables x.

    The variables are inputs of a network (bounds/forward/pair.py) or noise terms (bounds/forward/zonotope.py).
    """

    coefficients: Tensor  # (N, B, *value)
    offset: Tensor  # (B, *value)

    def __len__(self) -> int:
        return len(self.coefficients)

    def __add__(self, other: AffineFunction) -> AffineFunction:
        return AffineFunction(self.coefficients + other.coefficients, self.offset + other.offset)

    def __sub__(self, other: AffineFunction) -> AffineFunction:
        return AffineFunction(self.coefficients - other.coefficients, self.offset - other.offset)

    def __mul__(self, factor: Tensor | float) -> AffineFunction:
        return AffineFunction(self.coefficients * factor, self.offset * factor)

    @classmethod
    def constant(cls, count: int, offset: Tensor) -> AffineFunction:
        """Return functions of ``count`` variables that do not depend on them."""
        return cls(offset.new_zeros(count, *offset.shape), offset)

    def shifted(self, by: Tensor) -> AffineFunction:
        """Add a constant."""
        return AffineFunction(self.coefficients, self.offset + by)

    def padded(self, count: int) -> AffineFunction:
        """Return the same as functions of ``count`` variables, the new ones last."""
        if count == len(self):
            return self
        new = self.coefficients.new_zeros(count - len(self), *self.offset.shape)
        return AffineFunction(torch.cat([self.coefficients, new]), self.offset)

    def through(self, linear: Callable[[Tensor], Tensor]) -> AffineFunction:
        """Apply a linear map of values (M, *value) -> (M, *out)."""
        return self.joined(lambda parts: linear(parts[0]), [self])

    @staticmethod
    def joined(join: Callable[[list[Tensor]], Tensor], parts: Sequence[AffineFunction]) -> AffineFunction:
        """Apply a linear map of several values, each (M, *value); all parts have as many variables."""
        count, batch = len(parts[0]) + 1, parts[0].offset.shape[0]
        stacked = [torch.cat([part.coefficients, part.offset.unsqueeze(0)]).flatten(0, 1) for part in parts]
        moved = join(stacked)
        moved = moved.reshape(count, batch, *moved.shape[1:])
        return AffineFunction(moved[:-1], moved[-1])

    def weighted(self, weights: Tensor) -> Tensor:
        """Sum weights (N, B) times the coefficients: (B, *value)."""
        return (weights.reshape(*weights.shape, *([1] * (self.coefficients.dim() - 2))) * self.coefficients).sum(0)

    @property
    def sizes(self) -> AffineFunction:
        """The absolute values of coefficients and offset."""
        return AffineFunction(self.coefficients.abs(), self.offset.abs())
