"""Radii that differ from coordinate to coordinate, eps times a scale: rounded up for bounds, down for attacks."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from surebound.numerics.fractions import float_up
from surebound.numerics.neighbours import next_down, next_up, round_up


def radii_up(eps: Fraction, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers of a dtype that are not below eps * scale, scale (..., ) float64 >= 0; 0 where that is 0."""
    product = float_up(eps) * scale
    exact = (scale == 0) | (eps == 1)
    return round_up(torch.where(exact, product, next_up(product)), dtype)


def radii_down(eps: Fraction, scale: Tensor) -> Tensor:
    """Return float64 numbers >= 0 that are not above eps * scale, scale float64 >= 0."""
    product = -float_up(-eps) * scale
    exact = (scale == 0) | (eps == 1)
    return torch.where(exact, product, next_down(product)).clamp(min=0)


def spread_outwards(x: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
    """Return ends (B, ...) outside x -+ radii, both of one dtype: one place further than computed, exact at 0."""
    at_rest = radii == 0
    return torch.where(at_rest, x, next_down(x - radii)), torch.where(at_rest, x, next_up(x + radii))
