"""Results moved outwards by more than their evaluation may have lost (docs/soundness.md, Lemma 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.numerics.slack import amply_up
from surebound.numerics.units import Soundness, gamma, tiny, unit_roundoff

#: Roundings that a conversion between ends and centre/radius, and our own use of constants, may cost;
#: every affine rule covers them in advance (docs/soundness.md, "Who pays").
PREPAID_ROUNDINGS = 12


@dataclass(frozen=True)
class AffineRounding:
    """The rounding error bound of an affine operation with ``terms`` summands (docs/soundness.md, Lemma 1).

    The radius of the output is |A| (on_radius * r + on_center * |mu| + absolute) + on_bias * |b| + absolute.
    """

    on_radius: float
    on_center: float
    on_bias: float
    absolute: float

    @classmethod
    def of(cls, terms: int, dtype: torch.dtype, soundness: Soundness) -> AffineRounding:
        """Return the constants for one affine operation; all 0 in NONE."""
        if soundness is Soundness.NONE:
            return cls(1.0, 0.0, 0.0, 0.0)
        g = gamma(terms + PREPAID_ROUNDINGS, dtype)
        # Ours once (computing the centre); in DEPLOYED once more for the network's own rounding.
        times = 2 if soundness is Soundness.DEPLOYED else 1
        own = times * g * (1 + 4 * g)
        return cls(1 + times * g + 8 * g * g, own, own, 8 * (terms + PREPAID_ROUNDINGS) * tiny(dtype))

    @property
    def is_free(self) -> bool:
        """Nothing to pay: training."""
        return self.on_center == 0.0

    def radius_in(self, center: Tensor, radius: Tensor) -> Tensor:
        """Return what to multiply by |A|: the radius plus the rounding error bound of the centre's product."""
        if self.is_free:
            return radius
        paid = center.abs().mul_(self.on_center)  # one new array: fresh memory costs more than arithmetic
        return paid.add_(radius, alpha=self.on_radius).add_(self.absolute)

    def after(self, terms: int, largest: float) -> float:
        """Return what to add after the product with |A| instead of the ``absolute`` that ``radius_in`` adds before it.

        ``largest``: of all entries of |A|.
        """
        return self.absolute * (2 * terms * largest)

    def guarded(self, radius: Tensor, at_most: float = math.nan) -> Tensor:
        """Put NaN where some order of summation might overflow, or ours did: |A||x| + |b| <= 2 radius / on_center.

        ``at_most``: a number that no entry of the radius exceeds, if there is one that costs nothing.
        """
        if self.is_free or not radius.numel():
            return radius
        limit = 0.5 * self.on_center * float(torch.finfo(radius.dtype).max)
        if at_most <= limit or bool(radius.detach().amax() <= limit):
            return radius
        return torch.where(radius <= limit, radius, torch.full_like(radius, math.nan))

    def bias_in(self, bias: Tensor | None) -> Tensor | float:
        """Return what to add after |A| r for the rounding of the bias and for underflow."""
        if self.is_free:
            return 0.0
        return self.absolute if bias is None else bias.abs() * self.on_bias + self.absolute


def pay(center: Tensor, radius: Tensor, soundness: Soundness, roundings: int = 1) -> Tensor:
    """Widen a radius to cover ``roundings`` elementwise roundings of values in [center - radius, center + radius]."""
    if soundness is Soundness.NONE:
        return radius
    u = unit_roundoff(radius.dtype)
    k = 2 * (roundings + PREPAID_ROUNDINGS) * u
    paid = torch.add(radius * (1 + k), center.abs(), alpha=k) + 8 * (roundings + 1) * tiny(radius.dtype)
    return torch.add(paid, paid, alpha=0)  # 0 times infinity: NaN


def outward(
    lower: Tensor,
    upper: Tensor,
    soundness: Soundness,
    ulps: float,
    absolute: float | Tensor = 0.0,
    underflow: float = 2.0,
) -> tuple[Tensor, Tensor]:
    """Move both ends outwards so that they cover an evaluation that is wrong by ``ulps`` eps |value|
    plus ``absolute`` eps plus ``underflow`` tiny, where eps = 2 u.

    Once for our own evaluation of the ends; in DEPLOYED a second time for the network's own.
    """
    if soundness is Soundness.NONE or (ulps == 0 and isinstance(absolute, float) and absolute == 0):
        return lower, upper
    info = torch.finfo(lower.dtype)
    times = 2 if soundness is Soundness.DEPLOYED else 1
    # One more ulp and 2^-9 more for products of errors and for the roundings of these very lines.
    rate = (times * ulps + 1) * info.eps
    rest = absolute * amply_up(times * info.eps) + (times * underflow + 2) * info.tiny
    return lower - (lower.abs() * rate + rest), upper + (upper.abs() * rate + rest)


def down(value: Tensor, ulps: float = 1) -> Tensor:
    """Lower ``value`` by at least ``ulps`` units in the last place."""
    info = torch.finfo(value.dtype)
    return value - (value.abs() * ((ulps + 1) * info.eps) + 2 * info.tiny)


def up(value: Tensor, ulps: float = 1) -> Tensor:
    """Raise ``value`` by at least ``ulps`` units in the last place."""
    info = torch.finfo(value.dtype)
    return value + (value.abs() * ((ulps + 1) * info.eps) + 2 * info.tiny)
