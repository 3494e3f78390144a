"""The box an attack may move in: every float of it lies in the region in exact rational arithmetic.

Bounds round a region outwards, so that nothing is missed; an attack rounds it inwards, so that no
counterexample is outside by a last place. |x' - x| <= eps then holds for the numbers that are stored, not
only after rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from surebound.errors import RegionError
from surebound.numerics import exact_fraction, float_up, next_down, next_up
from surebound.region import Box, Region, project


@dataclass(frozen=True)
class InnerBox:
    """Ends of the largest box of floats inside a region, and the point of the region that stands for it."""

    lower: Tensor  # (B, ...)
    upper: Tensor  # (B, ...)
    reference: Tensor  # (B, ...)

    @classmethod
    def of(cls, region: Region) -> InnerBox:
        """Round a region inwards.

        >>> from surebound.region import LinfBall
        >>> box = InnerBox.of(LinfBall(torch.tensor([[0.3]]), "1/10", clip=(0, 1)))
        >>> Fraction(box.upper.item()) - Fraction(box.reference.item()) <= Fraction(1, 10)
        True
        """
        if isinstance(region, Box):
            lower, upper = region.lower.detach().clone(), region.upper.detach().clone()
            _check_finite(lower, upper)
            # Halves first: the sum of two large ends may overflow.
            return cls(lower, upper, project(lower / 2 + upper / 2, lower, upper))
        x = region.x.detach().clone()
        _check_finite(x)
        lower, upper = -_add_inwards(-x, region.eps), _add_inwards(x, region.eps)
        if region.clip is not None:
            # The region accepted x, so x belongs to it even where the clip end itself is not a float.
            lowest, highest = region.clip
            lower = torch.minimum(lower.clamp(min=-_at_most(-lowest, x)), x)
            upper = torch.maximum(upper.clamp(max=_at_most(highest, x)), x)
        return cls(lower, upper, x)

    def __getitem__(self, index: Tensor) -> InnerBox:
        return InnerBox(self.lower[index], self.upper[index], self.reference[index])

    def __len__(self) -> int:
        return int(self.lower.shape[0])


def _check_finite(*ends: Tensor) -> None:
    if not all(bool(torch.isfinite(end).all()) for end in ends):
        raise RegionError("the region reaches infinity; an attack needs finite inputs, so give a bounded region")


def _add_inwards(x: Tensor, eps: Fraction) -> Tensor:
    """Return the largest value of x's dtype that is not above x + eps (eps rounded down to float64)."""
    radius = -float_up(-eps)
    # Two roundings put the nearest value at most one place off; start above, come down to what fits.
    end = next_up((x.double() + radius).to(x.dtype))
    for _ in range(4):
        end = torch.where(_apart_at_most(end, x, radius), end, next_down(end))
    return torch.where(_apart_at_most(end, x, radius), end, x)


def _apart_at_most(a: Tensor, b: Tensor, radius: float) -> Tensor:
    """Decide a - b <= radius exactly: the difference as a float64 sum without error (Knuth's TwoSum)."""
    a, b = a.double(), -b.double()
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    # total is the float64 closest to total + error, so no float64 lies strictly between the two.
    return (total < radius) | ((total == radius) & (error <= 0))


def _at_most(value: float, like: Tensor) -> float:
    """Return the largest value of a dtype that is not above ``value``."""
    if math.isinf(value):
        return value
    nearest = torch.tensor(float(value), dtype=like.dtype)
    if Fraction(nearest.item()) > exact_fraction(value, "clip"):
        nearest = next_down(nearest)
    return float(nearest)
