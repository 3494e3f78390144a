"""Linear relaxations: how a backward pass goes through an operator that is not affine in one argument.

A relaxation ``pull``s coefficients a (S, B, *out) of the operator's output y back to its varying operands: for all
operand values within their bounds, sum(a y) <= sum_k sum(coefficients_k x_k) + offset. In the sound modes this holds
of the numbers as computed: the coefficients' rounding error bound is in the intercepts, once per region, because it
is at most |a| |slope| u max|x| whatever the specification (docs/soundness.md); or it is left (``owes``) to the affine
layer before, which has to multiply |coefficients| with something larger than max|x| anyway.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.kernels import rows
from surebound.numerics import (
    FEW_ROUNDINGS,
    Soundness,
    abs_dot,
    dot,
    dot_rounding,
    gamma,
    per_example,
    round_down,
    round_up,
    slightly_up,
    tiny,
)
from surebound.rules.registry import Context
from surebound.rules.relax.gradient import pull_lines
from surebound.rules.vjp import reduce_to

Slope = Tensor | float  # of the output's shape (B, *out), or one number
Index = Tensor | slice

#: Lower slopes of unstable ReLUs: the side of the larger area (CROWN), 0, 1, or the upper line's (Wong & Kolter 2018).
Slopes = Literal["adaptive", "zero", "one", "upper"]


@dataclass(frozen=True)
class Pulled:
    """Coefficients of the operands, in the order of the call's arguments, and the offset."""

    coefficients: tuple[Tensor, ...]  # each (S, B, *operand)
    offset: Tensor  # (S, B), float64
    priced: Tensor | None = None  # (S, B), float64: of the first coefficients, what ``Lines.pull`` was asked for


class Relaxation(Protocol):
    """The backward step of a call: coefficients of its value become coefficients of its operands, plus an offset."""

    @property
    def loose(self) -> Tensor | bool:
        """Where (B, *out) tighter bounds of the operands would make the relaxation tighter; True: everywhere."""

    @property
    def owes(self) -> float:
        """Relative rounding error of the coefficients that the offset does not cover: the step before must add it."""

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        """Take coefficients a (S, B, *out) back to the operands; ``slope`` replaces the lower one where it is free."""

    def select(self, index: Index) -> Relaxation:
        """Return the relaxation of some examples of the batch."""


@dataclass(frozen=True)
class Lines:
    """lower_k x_k + lower_intercept <= y <= upper_k x_k + upper_intercept, elementwise with broadcasting."""

    shapes: tuple[torch.Size, ...]  # of the operands, (B, *operand)
    lower: tuple[Slope, ...]
    upper: tuple[Slope, ...]
    lower_intercept: Tensor | None  # (B, *out); None: zero
    upper_intercept: Tensor  # (B, *out)
    absolute: Tensor  # (B,), float64: underflow
    free: Tensor | None = None  # (B, *out) bool: where any lower slope within free_range is as good a line
    free_range: tuple[float, float] = (0.0, 1.0)
    owes: float = 0.0
    fan: Fan | None = None  # lines besides these, to choose from

    @property
    def exact(self) -> bool:
        """The same slopes on both sides: nothing is lost but rounding."""
        return all(lo is up for lo, up in zip(self.lower, self.upper, strict=True))

    @property
    def loose(self) -> Tensor | bool:
        if self.free is not None:
            return self.free
        return not self.exact

    @property
    def intercepts(self) -> tuple[Tensor, Tensor]:
        """Lower and upper, (B, *out) each."""
        top = self.upper_intercept
        return torch.zeros_like(top) if self.lower_intercept is None else self.lower_intercept, top

    def pull(self, a: Tensor, slope: Tensor | None = None, price: rows.Price | None = None) -> Pulled:
        """Take coefficients back to the operands; ``price``: what to sum over the new ones in the same pass."""
        if self.fan is not None and slope is not None:
            return self._mixed(self.fan, a, slope.clamp(0, 1))
        lower = self._lower(slope)
        below, above, exact = lower[0], self.upper[0], lower[0] is self.upper[0]
        own = len(self.upper) == 1 and self.shapes[0][1:] == a.shape[2:]
        if not (own and isinstance(below, Tensor) and isinstance(above, Tensor)):
            return self._broadcast(a, lower)
        plain = self.lower_intercept is None and slope is None and below.shape == above.shape == a.shape[1:]
        if torch.is_grad_enabled() and plain:
            found = pull_lines(a, None if exact else below, above, self.upper_intercept, self.absolute)
            return Pulled((found[0],), found[1])
        bottom, top = self.lower_intercept, self.upper_intercept
        back, offset, priced = rows.pull(a, None if exact else below, above, bottom, top, self.absolute, price)
        return Pulled((back,), offset, priced)

    def _mixed(self, fan: Fan, a: Tensor, share: Tensor) -> Pulled:
        """Take coefficients back through lines of a fan."""
        (below, bottom), (above, top) = self.between(share)
        slope, intercept = torch.where(a > 0, above, below), torch.where(a > 0, top, bottom)
        offset = a.double() * intercept.double()
        total = offset.flatten(2).sum(2) if offset.dim() > 2 else offset
        return Pulled((a * slope,), total + abs_dot(a, fan.paid) + torch.maximum(self.absolute, fan.absolute))

    def between(self, share: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return slope and intercept of lines below and above: the first of a fan (0), these (1/2), its last (1).

        share (B or S, B, *out): a mixture of two neighbours elsewhere.
        """
        first, last = (2 * share).clamp(max=1), (2 * share - 1).clamp(min=0)
        outer = (self, self) if self.fan is None else (self.fan.first, self.fan.last)
        sides = []
        for side in (0, 1):
            three = zip(*(_numbers(each, side) for each in (outer[0], self, outer[1])), strict=True)
            slope, intercept = (low + first * (own - low) + last * (high - own) for low, own, high in three)
            sides.append((slope, intercept))
        return sides[0], sides[1]

    def _lower(self, slope: Tensor | None) -> tuple[Slope, ...]:
        """Return the lower slopes, the first replaced where it is free."""
        if slope is None or self.free is None:
            return self.lower
        return (torch.where(self.free, slope.clamp(*self.free_range), self.lower[0]), *self.lower[1:])

    def _broadcast(self, a: Tensor, lower: tuple[Slope, ...]) -> Pulled:
        """Take coefficients back to several operands or repeated ones, or through slopes that are numbers."""
        positive = a.clamp(min=0)
        negative = a - positive  # exact
        back = [
            # one of the two is 0: no rounding in the sum
            _times(a, up) if lo is up else _times(negative, lo) + _times(positive, up)
            for lo, up in zip(lower, self.upper, strict=True)
        ]
        offset = dot(positive, self.upper_intercept) + self.absolute
        if self.lower_intercept is not None:
            offset = offset + dot(negative, self.lower_intercept)
        return Pulled(self._spread(back), offset)

    def with_lower(self, slopes: Slopes) -> Lines:
        """Replace the lower slope where it is free, by the nearest one within free_range."""
        if self.free is None or slopes == "adaptive" or not isinstance(self.lower[0], Tensor):
            return self
        if slopes == "upper" and self.lower_intercept is None and self.free_range == (0.0, 1.0):
            return dataclasses.replace(self, lower=self.upper)  # s x <= max(x, 0) for every s in [0, 1]
        value = self.upper[0] if slopes == "upper" else float(slopes == "one")
        return dataclasses.replace(self, lower=self._lower(torch.as_tensor(value, dtype=self.lower[0].dtype)))

    def _spread(self, back: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Sum over the axes along which an operand was broadcast."""
        return tuple(
            reduce_to(b, torch.Size((b.shape[1], *shape[1:]))) for b, shape in zip(back, self.shapes, strict=True)
        )

    def select(self, index: Index) -> Lines:
        def pick(value: Slope) -> Slope:
            return value[index] if isinstance(value, Tensor) else value

        lower = tuple(pick(v) for v in self.lower)
        return dataclasses.replace(
            self,
            lower=lower,
            upper=lower if self.exact else tuple(pick(v) for v in self.upper),
            lower_intercept=None if self.lower_intercept is None else self.lower_intercept[index],
            upper_intercept=self.upper_intercept[index],
            absolute=self.absolute[index],
            free=None if self.free is None else self.free[index],
            fan=None if self.fan is None else self.fan.select(index),
        )


@dataclass(frozen=True)
class Fan:
    """More lines of an elementwise function, close to it at the lower end of its operand, and at the upper end.

    Any mixture of lines above is a line above, and of those below one below.
    """

    first: Lines
    last: Lines
    paid: Tensor  # (B, *out): the rounding error bound of a mixture and of what coefficients become with it

    @property
    def absolute(self) -> Tensor:
        """Underflow, (B,) float64."""
        return torch.maximum(self.first.absolute, self.last.absolute)

    def select(self, index: Index) -> Fan:
        """Select examples."""
        return Fan(self.first.select(index), self.last.select(index), self.paid[index])

    @classmethod
    def around(cls, ctx: Context, x: Interval, first: Lines, middle: Lines, last: Lines) -> Fan:
        """Add what mixing rounds: six operations on slopes and on intercepts, and a product with each coefficient."""
        several = (first, middle, last)
        if ctx.soundness is Soundness.NONE:
            return cls(first, last, torch.zeros_like(middle.upper_intercept))
        numbers = [[_numbers(each, side) for each in several] for side in (0, 1)]
        steep, far = (
            torch.stack([pair[k].double().abs() for side in numbers for pair in side]).amax(0) for k in (0, 1)
        )
        paid = gamma(32, x.dtype) * (steep * x.magnitude.double() + far) + 16 * tiny(x.dtype)
        return cls(first, last, round_up(paid, x.dtype))


def _numbers(line: Lines, side: int) -> tuple[Tensor, Tensor]:
    """Return the slope and the intercept of the lower (0) or upper (1) line of a function of one operand."""
    slope = (line.lower, line.upper)[side][0]
    return (slope if isinstance(slope, Tensor) else torch.full_like(line.upper_intercept, slope)), line.intercepts[side]


def lines(
    ctx: Context,
    operands: Sequence[Interval],
    lower: Sequence[Slope],
    lower_intercept: Tensor,
    upper: Sequence[Slope],
    upper_intercept: Tensor,
    free: Tensor | None = None,
    free_range: tuple[float, float] = (0.0, 1.0),
) -> Lines:
    """Make lines sound as computed, from lines of the exact operator (intercepts in float64 in the sound modes).

    The same slope objects on both sides mean that the operator is affine.
    """
    dtype, out = operands[0].dtype, lower_intercept.shape
    absolute = torch.zeros(out[0], dtype=torch.float64, device=lower_intercept.device)
    if ctx.soundness is not Soundness.NONE:
        for k, x in enumerate(operands):
            lower_intercept = lower_intercept - _rounding_bound(lower[k], x, out, free, free_range)
            upper_intercept = upper_intercept + _rounding_bound(upper[k], x, out, None, free_range)
            largest = per_example(x.magnitude.double()) if x.shape.numel() else absolute
            absolute = absolute + 16.0 * math.prod(out[1:]) * tiny(dtype) * (1 + largest)
        # The dot product with the coefficients, and our own arithmetic on the intercepts.
        outward = 2 * dot_rounding(out, dtype) + FEW_ROUNDINGS
        lower_intercept = round_down(lower_intercept - outward * lower_intercept.abs(), dtype)
        upper_intercept = round_up(upper_intercept + outward * upper_intercept.abs(), dtype)
    shapes = tuple(x.shape for x in operands)
    return Lines(shapes, tuple(lower), tuple(upper), lower_intercept, upper_intercept, absolute, free, free_range)


def _rounding_bound(
    slope: Slope, x: Interval, out: torch.Size, free: Tensor | None, free_range: tuple[float, float]
) -> Tensor:
    """Bound the rounding error (B, *out) of a * slope, summed over the entries that one x was broadcast to."""
    wide = x.magnitude.double().expand(out)
    size = slope.double().abs().expand(out) if isinstance(slope, Tensor) else torch.full_like(wide, abs(slope))
    repeats = math.prod(out) // max(1, x.shape.numel())
    if repeats <= 1:  # a slope of 0 or +-1 is used without rounding
        size = torch.where(size == 1, torch.zeros_like(size), size)
    if free is not None:
        size = torch.where(free, torch.full_like(size, max(abs(end) for end in free_range)), size)
    return torch.where(size == 0, size, slightly_up(gamma(repeats + 2, x.dtype)) * size * wide)


def _times(a: Tensor, slope: Slope) -> Tensor:
    if isinstance(slope, Tensor):
        return a * slope
    return a if slope == 1.0 else a * slope
