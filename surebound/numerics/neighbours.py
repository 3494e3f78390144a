"""The floats next to a number, and those that hardware may take for zero."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surebound.numerics.units import tiny


def round_up(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the smallest number of ``dtype`` that is not below ``value`` (float64)."""
    nearest = value.to(dtype)
    above = torch.nextafter(nearest, nearest.new_tensor(math.inf))
    return torch.where(nearest.double() < value, above, nearest)


def round_down(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the largest number of ``dtype`` that is not above ``value`` (float64)."""
    return -round_up(-value, dtype)


def next_up(value: Tensor) -> Tensor:
    """Return the number of the tensor's dtype that follows each entry."""
    return torch.nextafter(value, value.new_tensor(math.inf))


def next_down(value: Tensor) -> Tensor:
    """Return the number of the tensor's dtype that precedes each entry."""
    return torch.nextafter(value, value.new_tensor(-math.inf))


def strictly_above(value: Tensor) -> Tensor:
    """Raise float64 offsets: ``x + value >= 0`` implies ``x + result > 0``, also where subnormals are flushed.

    >>> bool(strictly_above(torch.zeros(1, dtype=torch.float64)) >= torch.finfo(torch.float32).tiny)
    True
    """
    return torch.maximum(next_up(value), value + tiny(torch.float32))


def step_towards(value: Tensor, goal: Tensor) -> Tensor:
    """Move each entry to its neighbour on the side of its goal, unless it is there; in the goals' memory."""
    return torch.nextafter(value, goal, out=goal)


def has_subnormal(value: Tensor) -> bool:
    """Does a tensor hold subnormal numbers, which some hardware flushes to zero? (The smallest normal counts too.)"""
    parts = torch.split(value.detach().flatten(), 1 << 18)  # so that the copies stay small
    return any(extent_of_sizes(part.abs())[1] for part in parts)


def extent_of_sizes(size: Tensor) -> tuple[float, bool]:
    """Return the largest of absolute values, and whether there are subnormal numbers (``has_subnormal``)."""
    if not size.numel():
        return 0.0, False
    least = torch.finfo(size.dtype).tiny
    low, high = (float(end) for end in torch.aminmax(size.detach()))
    # Mostly no number is that small, zero neither; only then it is worth a look at each of them.
    return high, not low > least and bool(((size <= least) & (size > 0)).any())
