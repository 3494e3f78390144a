"""Bounds of all values of sub-problems, on their way through propagation: they only ever get narrower."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import FEW_ROUNDINGS


@dataclass(frozen=True, eq=False)
class Ranges:
    """Bounds of the values of N sub-problems."""

    v: Interval  # (N, V): inputs and outputs of unstable ReLUs
    z: Interval  # (N, U): inputs of the ReLUs
    reach: Interval  # (N, U): of the same, as far as the columns before them go
    refuted: Tensor  # (N,) bool: nothing is left

    def __getitem__(self, index: Tensor) -> Ranges:
        v, z, reach = (each.select(lambda end: end[index]) for each in (self.v, self.z, self.reach))
        return Ranges(v, z, reach, self.refuted[index])

    @classmethod
    def cat(cls, parts: list[Ranges]) -> Ranges:
        """Join several into one."""
        if len(parts) == 1:
            return parts[0]
        v, z, reach = (
            Interval(*(torch.cat([getattr(getattr(p, name), end) for p in parts]) for end in ("lower", "upper")))
            for name in ("v", "z", "reach")
        )
        return cls(v, z, reach, torch.cat([p.refuted for p in parts]))

    @property
    def signs(self) -> Tensor:
        """(N, U) int8: -1 or 1 where the sign of a ReLU's input is known, else 0."""
        return (self.z.lower >= 0).to(torch.int8) - (self.z.upper <= 0).to(torch.int8)

    @property
    def width(self) -> Tensor:
        """(N, V): how far the columns go."""
        return self.v.upper - self.v.lower

    @property
    def length(self) -> Tensor:
        """(N, U): how far the columns before a ReLU reach."""
        return self.reach.upper - self.reach.lower

    @property
    def gaps(self) -> Tensor:
        """(N, U): how far apart a ReLU and the line above it may lie, at most."""
        low, high = self.z.lower.clamp(max=0), self.z.upper.clamp(min=0)
        return torch.where(high > low, -low * high / (high - low), 0.0)

    @property
    def straddle(self) -> Tensor:
        """(N, U) bool: the input of a ReLU has both signs, by more than rounding."""
        return (self.z.lower < -self._room) & (self.z.upper > self._room)

    @property
    def open(self) -> Tensor:
        """(N, U) bool: the columns before a ReLU reach further than its input may go, or to both signs of it."""
        beyond = (self.reach.upper > self.z.upper + self._room) | (self.reach.lower < self.z.lower - self._room)
        return beyond | self.straddle

    @property
    def _room(self) -> Tensor:
        return 1e-3 * self.length  # heuristic: what to split

    def refute(self, where: Tensor) -> Ranges:
        """Refute more of the sub-problems."""
        return replace(self, refuted=self.refuted | where)

    def columns(self, at: slice) -> Interval:
        """Return the bounds of some columns."""
        return self.v.select(lambda end: end[:, at])

    def inputs(self, own: slice) -> Interval:
        """Return the bounds of some ReLUs' inputs."""
        return self.z.select(lambda end: end[:, own])

    def with_columns(self, at: slice, found: Interval) -> Ranges:
        """Narrow some columns to (N, W); ends that have met refute."""
        v, empty = _narrowed(self.v, at, found)
        return replace(self.refute(empty), v=v)

    def with_inputs(self, own: slice, found: Interval) -> Ranges:
        """Narrow the inputs of some ReLUs to (N, W); ends that have met refute."""
        z, empty = _narrowed(self.z, own, found)
        return replace(self.refute(empty), z=z)

    def with_signs(self, signs: Tensor) -> Ranges:
        """Cut the ReLUs' inputs at 0 where a sign is given: (N, U)."""
        lower, upper = torch.full_like(self.z.lower, -torch.inf), torch.full_like(self.z.upper, torch.inf)
        sided = Interval(torch.where(signs > 0, 0.0, lower), torch.where(signs < 0, 0.0, upper))
        return self.with_inputs(slice(None), sided)

    def within(self, at: slice, up: Tensor, down: Tensor) -> Ranges:
        """Keep some columns at most ``up`` (N, W) below their upper ends, at most ``down`` above their lower ones."""
        v = self.columns(at)
        lower = v.upper - up - (v.upper.abs() + up) * FEW_ROUNDINGS
        upper = v.lower + down + (v.lower.abs() + down) * FEW_ROUNDINGS
        return self.with_columns(at, Interval(lower, upper))


def _narrowed(whole: Interval, at: slice, found: Interval) -> tuple[Interval, Tensor]:
    """Intersect a part of bounds (N, M) with others (N, W); say also where nothing is left: (N,)."""
    low, high = whole.lower.clone(), whole.upper.clone()
    low[:, at], high[:, at] = torch.fmax(low[:, at], found.lower), torch.fmin(high[:, at], found.upper)
    return Interval(low, high), (low > high).any(1)
