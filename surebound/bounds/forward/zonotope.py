"""Zonotopes: every value is a centre plus a sum of shared noise terms in [-1, 1] (Gehr et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surebound.affine import AffineFunction
from surebound.bounds.constants import Constants
from surebound.bounds.forward.domain import Forward, Map, blocks
from surebound.bounds.linear.intermediate import MEMORY
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import WIDE, Soundness, Working, by_rows, nothing_known, round_up
from surebound.rules.relax.lines import Lines, Slope, Slopes


@dataclass(frozen=True)
class Zonotope:
    """Zonotopes with DeepZ's ReLU: chord slope, one new noise term per unstable neuron.

    requirement: soundness "real" or "deployed"
    property:    sound; not complete; intersected with interval bounds at every value
    reference:   Gehr et al. 2018 (AI2); Singh et al. 2018 (DeepZ), theorem 3.1
    """

    within_intervals: ClassVar[bool] = False  # their rows are not merged with the last layer's

    memory: int = MEMORY

    def margins(self, program: Program, box: Interval, c: Tensor, d: Tensor, mode: Soundness) -> Tensor:
        """Bound c.z + d from above, c (B, S, K), d (B, S): (B, S)."""
        upper = torch.empty(c.shape[:2], dtype=box.dtype, device=box.device)
        for part, block in blocks(program, box, self.memory, noise=True):
            domain = ZonotopeDomain()
            form = Forward(Constants(program), mode, domain).run(block)
            upper[part] = round_up(domain.upper(form, c[part], d[part]), box.dtype)
        return nothing_known(upper)


@dataclass(frozen=True, eq=False)
class ZonotopeForm:
    """A function of noise terms in [-1, 1], and [-rest, rest] of its own; all in the working dtype."""

    function: AffineFunction
    rest: Tensor  # (B, *value): rounding; in a hybrid zonotope also whatever is not correlated

    @property
    def radius(self) -> Tensor:
        """How far values lie from the centre, up to rounding."""
        return self.function.coefficients.abs().sum(0) + self.rest

    @property
    def size(self) -> Tensor:
        """What rounding is relative to."""
        return self.function.offset.abs() + self.radius


class ZonotopeDomain:
    """Counts the noise terms of one walk, so that branches of a network share them."""

    slopes: Slopes = "upper"

    def __init__(self, working: Working = WIDE) -> None:
        self.count, self.working = 0, working

    def start(self, box: Interval) -> ZonotopeForm:
        low, high = self.working.of(box.lower), self.working.of(box.upper)
        center, radius = (low + high) / 2, (high - low) / 2
        rest = (center.abs() + radius) * self.working.few
        return self._extended(AffineFunction.constant(self.count, center), rest, radius, radius > 0)

    def bounds(self, form: ZonotopeForm) -> Interval:
        center = form.function.offset
        radius = form.radius * (1 + self.working.sum_of(len(form.function) + 8)) + center.abs() * self.working.few
        return Interval(center - radius, center + radius)

    def affine(self, map: Map, form: ZonotopeForm) -> ZonotopeForm:
        rest = form.rest + map.rate * form.size if self.working.pays else form.rest
        rest = map.absolute(rest) * (1 + map.rate) + map.own
        return ZonotopeForm(form.function.through(map.linear).shifted(map.constant), rest)

    def relaxed(self, lines: Lines, boxes: list[Interval], forms: list[ZonotopeForm], loose: Tensor) -> ZonotopeForm:
        low, high = (self.working.of(end) for end in lines.intercepts)
        rest = torch.zeros_like(low)
        function = AffineFunction.constant(self.count, rest)
        for below, above, box, form in zip(lines.lower, lines.upper, boxes, forms, strict=True):
            slope, spread = _between(below, above, self.working)
            # The two lines have other slopes than the one between them: what that is worth over the box.
            width = spread * self.working.of(box.magnitude)
            low, high = low - width, high + width
            function = function + form.function.padded(self.count) * slope
            rest = rest + abs(slope) * (form.rest + form.size * self.working.few) + width * self.working.few
        half = (high - low) / 2
        rest = rest + (low.abs() + high.abs()) * self.working.few + torch.where(loose, torch.zeros_like(half), half)
        return self._extended(function.shifted((low + high) / 2), rest, half, loose & (half > 0))

    def _extended(self, function: AffineFunction, rest: Tensor, radius: Tensor, where: Tensor) -> ZonotopeForm:
        """Add one new noise term of the given radius for every marked entry of an example."""
        mask = by_rows(where)
        new = int(mask.sum(1).max()) if mask.numel() else 0
        index = mask.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :new]  # (B, new)
        values = by_rows(radius).masked_fill(~mask, 0.0).gather(1, index)
        added = rest.new_zeros(new, *mask.shape).scatter_(2, index.t().unsqueeze(2), values.t().unsqueeze(2))
        known = function.padded(self.count)
        self.count += new
        terms = torch.cat([known.coefficients, added.reshape(new, *rest.shape)])
        return ZonotopeForm(AffineFunction(terms, known.offset), rest)

    def join(self, join: Callable[[list[Tensor]], Tensor], parts: list[ZonotopeForm | Tensor]) -> ZonotopeForm:
        forms = [p if isinstance(p, ZonotopeForm) else self._fixed(p) for p in parts]
        function = AffineFunction.joined(join, [form.function.padded(self.count) for form in forms])
        return ZonotopeForm(function, join([form.rest for form in forms]))

    def _fixed(self, value: Tensor) -> ZonotopeForm:
        return ZonotopeForm(AffineFunction.constant(self.count, value), torch.zeros_like(value))

    def constant(self, box: Interval) -> ZonotopeForm:
        low, high = self.working.of(box.lower), self.working.of(box.upper)
        radius = (high - low) / 2 * (1 + self.working.few) + (low.abs() + high.abs()) * self.working.few
        center = AffineFunction.constant(self.count, (low + high) / 2)
        return self._extended(center, torch.zeros_like(low), radius, radius > 0)

    def upper(self, form: ZonotopeForm, c: Tensor, d: Tensor) -> Tensor:
        wide, constant, function = self.working.of(c), self.working.of(d), form.function
        center = torch.einsum("bsk,bk->bs", wide, function.offset) + constant
        spread = torch.einsum("bsk,ebk->ebs", wide, function.coefficients).abs().sum(0)
        rest = torch.einsum("bsk,bk->bs", wide.abs(), form.rest)
        size = torch.einsum("bsk,bk->bs", wide.abs(), form.size) + constant.abs()
        terms = len(function) + math.prod(function.offset.shape[1:]) + 64
        return center + spread + rest + size * self.working.sums(terms, 4)


def _between(below: Slope, above: Slope, working: Working) -> tuple[Tensor, Tensor]:
    """Return the slope between two, and how far they are from it."""
    low, high = (torch.as_tensor(slope, dtype=working.dtype) for slope in (below, above))
    return (low + high) / 2, (high - low).abs() / 2
