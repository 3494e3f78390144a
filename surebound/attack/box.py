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
from surebound.norm_ball import NormBall
from surebound.numerics import exact_fraction, float_up, next_down, next_up, radii_down
from surebound.pixel_ball import PixelBall
from surebound.region import Box, LinfBall, Region, project


@dataclass(frozen=True)
class InnerBox:
    """Ends of the largest box of floats inside a region, and the point of the region that stands for it."""

    lower: Tensor  # (B, ...)
    upper: Tensor  # (B, ...)
    reference: Tensor  # (B, ...)
    ball: NormBall | None = None  # of another norm, inside of the box

    @classmethod
    def of(cls, region: Region) -> InnerBox:
        """Round a region inwards.

        >>> from surebound.region import LinfBall
        >>> box = InnerBox.of(LinfBall(torch.tensor([[0.3]]), "1/10", clip=(0, 1)))
        >>> Fraction(box.upper.item()) - Fraction(box.reference.item()) <= Fraction(1, 10)
        True
        """
        if isinstance(region, NormBall):
            around = cls.of(region.box)
            if region.eps == 0:  # one point: nothing to choose
                return around
            return cls(around.lower, around.upper, around.reference, region)
        if isinstance(region, Box):
            lower, upper = region.lower.detach().clone(), region.upper.detach().clone()
            _check_finite(lower, upper)
            # Halves first: the sum of two large ends may overflow.
            return cls(lower, upper, project(lower / 2 + upper / 2, lower, upper))
        x = region.x.detach().clone()
        _check_finite(x)
        radius = _inner_radius(region)
        lower, upper = -_add_inwards(-x, radius), _add_inwards(x, radius)
        if region.clip is not None:
            # The region accepted x, so x belongs to it even where the clip end itself is not a float.
            lowest, highest = region.clip
            lower = torch.minimum(lower.clamp(min=-_at_most(-lowest, x)), x)
            upper = torch.maximum(upper.clamp(max=_at_most(highest, x)), x)
        return cls(lower, upper, x)

    def __getitem__(self, index: Tensor) -> InnerBox:
        ball = None if self.ball is None else self.ball[index]
        return InnerBox(self.lower[index], self.upper[index], self.reference[index], ball)

    def nearest(self, x: Tensor, slope: Tensor | None = None) -> Tensor:
        """Return points of the box close to x (B, ...), and of the ball but for rounding, if there is one.

        Of a region of few pixels those are kept that gain most along ``slope``, or that moved most if there is none.
        """
        found = project(x, self.lower, self.upper)
        if isinstance(self.ball, PixelBall):
            return self._few(found, self.ball, slope)
        return found if self.ball is None else _towards(found, self.reference, self.ball)

    def _few(self, x: Tensor, ball: PixelBall, slope: Tensor | None) -> Tensor:
        """Put all pixels but the best ones back."""
        low, high = self.lower - self.reference, self.upper - self.reference
        gains = (x - self.reference).abs() if slope is None else torch.maximum(slope * low, slope * high)
        kept = ball.best(ball.by_pixel(gains.flatten(1).double())).unsqueeze(1)  # (B, 1, H, W)
        kept = kept.expand(-1, *ball.grid).reshape(x.shape)
        return torch.where(kept, x, self.reference)

    def settled(self, x: Tensor) -> Tensor:
        """Return points close to x (B, ...) that lie in the region exactly; the reference where none is found."""
        found = self.nearest(x)
        if self.ball is None:
            return found
        for _ in range(8):
            out = ~self.ball.contains(found)
            if not bool(out.any()):
                return found
            # heuristic: a little shorter; what is still outside then is looked at again
            shorter = project(torch.lerp(self.reference, found, 1 - 2.0**-18), self.lower, self.upper)
            found = torch.where(out.view(-1, *[1] * (x.dim() - 1)), shorter, found)
        out = ~self.ball.contains(found)
        return torch.where(out.view(-1, *[1] * (x.dim() - 1)), self.reference, found)

    def __len__(self) -> int:
        return int(self.lower.shape[0])


def _towards(x: Tensor, origin: Tensor, ball: NormBall) -> Tensor:
    """Move points (B, ...) into balls around their origins: along the ray (l2), or to the closest point (l1)."""
    moved = (x.double() - origin.double()).flatten(1)  # (B, n)
    reach = float(ball.eps)
    if ball.norm == 2:
        size = moved.norm(dim=1, keepdim=True)
        inside = torch.where(size > reach, moved * (reach / size), moved)
    else:
        ordered = moved.abs().sort(dim=1, descending=True).values
        count = torch.arange(1, moved.shape[1] + 1, dtype=moved.dtype, device=moved.device)
        cut = (ordered.cumsum(1) - reach) / count  # Duchi et al. 2008, figure 1
        last = (ordered > cut).sum(1, keepdim=True).clamp(min=1) - 1
        level = cut.gather(1, last).clamp(min=0)
        inside = moved.sign() * (moved.abs() - level).clamp(min=0)
    return (origin.double() + inside.reshape(x.shape)).to(x.dtype)


def _check_finite(*ends: Tensor) -> None:
    if not all(bool(torch.isfinite(end).all()) for end in ends):
        raise RegionError("the region reaches infinity; an attack needs finite inputs, so give a bounded region")


def _inner_radius(region: LinfBall) -> float | Tensor:
    """Return the radius, or that of every coordinate, rounded down to float64."""
    if region.scale is None:
        return -float_up(-region.eps)
    return radii_down(region.eps, region.scale).to(region.x.device)


def _add_inwards(x: Tensor, radius: float | Tensor) -> Tensor:
    """Return the largest value of x's dtype that is not above x + radius (float64)."""
    # Two roundings put the nearest value at most one place off; start above, come down to what fits.
    end = next_up((x.double() + radius).to(x.dtype))
    for _ in range(4):
        end = torch.where(_apart_at_most(end, x, radius), end, next_down(end))
    return torch.where(_apart_at_most(end, x, radius), end, x)


def _apart_at_most(a: Tensor, b: Tensor, radius: float | Tensor) -> Tensor:
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
