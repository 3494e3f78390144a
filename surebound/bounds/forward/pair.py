"""Pairs of affine functions: every value lies between two of them, of the inputs that vary.

reference: Wang et al. 2018 (symbolic intervals; ReluVal, Neurify); Xu et al. 2020, section 3 (forward bounds)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.affine import AffineFunction
from surebound.bounds.forward.domain import Map
from surebound.interval import Interval
from surebound.numerics import WIDE, Working, by_rows
from surebound.rules.relax.lines import Lines, Slopes


@dataclass(frozen=True, eq=False)
class Pair:
    """lower <= value <= upper for every input of the box; all in the working dtype.

    ``depth``: how many operators after the first relaxed one relax, or sum up several entries. Up to 2 (an activation
    and the layer after it) a backward pass over the same lines comes to the same bounds, but for rounding.
    """

    lower: AffineFunction
    upper: AffineFunction
    depth: int

    @property
    def loses(self) -> bool:
        """May a backward pass be tighter?"""
        return self.depth > 2

    @property
    def sides(self) -> tuple[AffineFunction, AffineFunction]:
        """Both functions."""
        return self.lower, self.upper


def varying(box: Interval) -> Tensor:
    """Return the places (N,) in the flattened input that vary in any of the boxes (B, *input)."""
    return by_rows(box.upper > box.lower).any(0).nonzero()[:, 0]


class PairDomain:
    """Pairs over one batch of boxes (B, *input), with the given lower slopes of activations."""

    def __init__(self, box: Interval, slopes: Slopes, working: Working = WIDE) -> None:
        self.slopes, self.working = slopes, working
        self.index = varying(box)  # (N,)
        low, high = (by_rows(working.of(end))[:, self.index].t() for end in (box.lower, box.upper))  # (N, B)
        self.center = (low + high) / 2
        self.radius = (high - low) / 2 * (1 + working.few) + high.abs() * working.few
        self.reach = torch.maximum(low.abs(), high.abs())

    def _size(self, pair: Pair) -> Tensor:
        """Bound the sum of the sizes of the pair's terms, which rounding is relative to."""
        sides = [side.sizes for side in pair.sides]
        return torch.stack([side.weighted(self.reach) + side.offset for side in sides]).sum(0)

    def start(self, box: Interval) -> Pair:
        """Return the pair of the input."""
        count, batch = self.center.shape
        fixed = by_rows(self.working.of(box.lower)).index_fill(1, self.index, 0.0)  # (B, n)
        one = fixed.new_zeros(count, batch, fixed.shape[1])
        one = one.scatter_(2, self.index.reshape(-1, 1, 1).expand(-1, batch, 1), 1.0)
        function = AffineFunction(one.reshape(count, *box.shape), fixed.reshape(box.shape))
        return Pair(function, function, 0)

    def bounds(self, form: Pair) -> Interval:
        """Bound a value in the working dtype, rounding included."""
        ends = []
        for side, sign in zip(form.sides, (-1.0, 1.0), strict=True):
            sizes = side.sizes
            spread = sizes.weighted(self.radius)
            if self.working.pays:
                slack = self.working.sums(len(side) + 64, 4)
                spread = spread + (sizes.weighted(self.reach) + sizes.offset) * slack
            ends.append(side.weighted(self.center) + side.offset + sign * spread)
        return Interval(ends[0], ends[1])

    def affine(self, map: Map, form: Pair) -> Pair:
        """Return the pair of W x + b: its middle through W, half its width through |W|."""
        error = map.own
        if self.working.pays:
            error = error + map.absolute(self._size(form)) * map.rate
        middle, half = (form.upper + form.lower) * 0.5, (form.upper - form.lower) * 0.5
        line, across = middle.through(map.linear).shifted(map.constant), half.through(map.absolute)
        depth = form.depth + (map.mixes and form.depth > 0)
        return Pair((line - across).shifted(-error), (line + across).shifted(error), depth)

    def relaxed(self, lines: Lines, boxes: list[Interval], forms: list[Pair], loose: Tensor) -> Pair:
        """Return the pair of a value between lines of its operands."""
        low, high = (AffineFunction.constant(len(self.index), self.working.of(end)) for end in lines.intercepts)
        error = (low.offset.abs() + high.offset.abs()) * self.working.few
        for below, above, form in zip(lines.lower, lines.upper, forms, strict=True):
            under, over = (torch.as_tensor(slope, dtype=self.working.dtype) for slope in (below, above))
            low, high = low + _scaled(under, *form.sides), high + _scaled(over, *reversed(form.sides))
            if self.working.pays:
                error = error + torch.maximum(under.abs(), over.abs()) * self._size(form) * self.working.few
        depth = max(form.depth for form in forms) + bool(loose.any())
        return Pair(low.shifted(-error), high.shifted(error), depth)

    def join(self, join: Callable[[list[Tensor]], Tensor], parts: list[Pair | Tensor]) -> Pair:
        """Return the pair of joined parts; a tensor is a constant."""
        pairs = [part if isinstance(part, Pair) else self._fixed(part) for part in parts]
        lower, upper = (AffineFunction.joined(join, [pair.sides[side] for pair in pairs]) for side in (0, 1))
        lossy = [pair.depth for pair in pairs if pair.depth]
        return Pair(lower, upper, max(lossy, default=0) + (len(lossy) > 1))

    def _fixed(self, value: Tensor) -> Pair:
        function = AffineFunction.constant(len(self.index), value)
        return Pair(function, function, 0)

    def constant(self, box: Interval) -> Pair:
        """Return the pair of a value of which only bounds are known; nobody knows how good they are."""
        ends = (self.working.of(box.lower), self.working.of(box.upper))
        lower, upper = (AffineFunction.constant(len(self.index), end) for end in ends)
        return Pair(lower, upper, 3)

    def upper(self, form: Pair, c: Tensor, d: Tensor) -> Tensor:
        """Bound c.z + d from above, c (B, S, K), in the working dtype, rounding included: (B, S)."""
        wide, constant = self.working.of(c), self.working.of(d)
        positive = wide.clamp(min=0)
        negative = wide - positive

        def combined(up: Tensor, low: Tensor, subscripts: str) -> Tensor:
            return torch.einsum(subscripts, positive, up) + torch.einsum(subscripts, negative, low)

        coefficients = combined(form.upper.coefficients, form.lower.coefficients, "bsk,nbk->nbs")
        offset = combined(form.upper.offset, form.lower.offset, "bsk,bk->bs") + constant
        middle = (self.center.unsqueeze(2) * coefficients).sum(0) + offset
        spread = (self.radius.unsqueeze(2) * coefficients.abs()).sum(0)
        if not self.working.pays:
            return middle + spread
        size = torch.einsum("bsk,bk->bs", wide.abs(), self._size(form)) + constant.abs()
        terms = self.center.shape[0] + math.prod(form.upper.offset.shape[1:]) + 64
        return middle + spread + size * self.working.sums(terms, 4)


def _scaled(factor: Tensor, same: AffineFunction, other: AffineFunction) -> AffineFunction:
    """Return factor times a value bounded by ``same``, or by ``other`` where the factor is negative."""
    positive = factor.clamp(min=0)
    if bool((factor >= 0).all()):
        return same * factor
    return same * positive + other * (factor - positive)
