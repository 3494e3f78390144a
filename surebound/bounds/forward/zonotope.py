"""Zonotopes: every value is a centre plus a sum of shared noise terms in [-1, 1] (Gehr et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surebound.bounds.forward.domain import Forward, Map, blocks
from surebound.bounds.linear.intermediate import MEMORY
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import FEW_ROUNDINGS, Soundness, by_rows, gamma, nothing_known, round_up, several_sums
from surebound.rules.relax.lines import Lines, Slope


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
            domain = _ZonotopeDomain()
            form = Forward(program, mode, domain).run(block)
            upper[part] = round_up(domain.upper(form, c[part], d[part]), box.dtype)
        return nothing_known(upper)


@dataclass(frozen=True)
class _ZonotopeForm:
    """center + sum_e terms_e noise_e + [-rest, rest]; all float64."""

    center: Tensor  # (B, *value)
    terms: Tensor  # (E, B, *value)
    rest: Tensor  # (B, *value): rounding, kept as an interval of its own

    @property
    def size(self) -> Tensor:
        return self.center.abs() + self.terms.abs().sum(0) + self.rest


class _ZonotopeDomain:
    """Counts the noise terms of one walk, so that branches of a network share them."""

    def __init__(self) -> None:
        self.count = 0

    def start(self, box: Interval) -> _ZonotopeForm:
        low, high = box.lower.double(), box.upper.double()
        center, radius = (low + high) / 2, (high - low) / 2
        rest = (center.abs() + radius) * FEW_ROUNDINGS
        return self._extended(center, center.new_zeros(0, *center.shape), rest, radius, radius > 0)

    def bounds(self, form: _ZonotopeForm) -> Interval:
        radius = form.terms.abs().sum(0) + form.rest
        radius = radius * (1 + gamma(form.terms.shape[0] + 8, torch.float64)) + form.center.abs() * FEW_ROUNDINGS
        return Interval(form.center - radius, form.center + radius)

    def affine(self, map: Map, form: _ZonotopeForm) -> _ZonotopeForm:
        count, batch = form.terms.shape[:2]
        center = map.linear(form.center) + map.constant
        terms = map.linear(form.terms.flatten(0, 1)) if count else center[:0]
        rest = map.absolute(form.rest + map.rate * form.size) * (1 + map.rate) + map.own
        return _ZonotopeForm(center, terms.reshape(count, batch, *center.shape[1:]), rest)

    def relaxed(self, lines: Lines, boxes: list[Interval], forms: list[_ZonotopeForm], loose: Tensor) -> _ZonotopeForm:
        low, high = (end.double() for end in lines.intercepts)
        center = rest = torch.zeros_like(low)
        terms = low.new_zeros(self.count, *low.shape)
        for below, above, box, form in zip(lines.lower, lines.upper, boxes, forms, strict=True):
            slope, spread = _between(below, above)
            # The two lines have other slopes than the one between them: what that is worth over the box.
            width = spread * box.magnitude.double()
            low, high = low - width, high + width
            center = center + slope * form.center
            terms = terms + slope * self._padded(form.terms)
            rest = rest + abs(slope) * (form.rest + form.size * FEW_ROUNDINGS) + width * FEW_ROUNDINGS
        half = (high - low) / 2
        rest = rest + (low.abs() + high.abs()) * FEW_ROUNDINGS + torch.where(loose, torch.zeros_like(half), half)
        return self._extended(center + (low + high) / 2, terms, rest, half, loose & (half > 0))

    def _padded(self, terms: Tensor) -> Tensor:
        missing = self.count - terms.shape[0]
        return terms if missing == 0 else torch.cat([terms, terms.new_zeros(missing, *terms.shape[1:])])

    def _extended(self, center: Tensor, terms: Tensor, rest: Tensor, radius: Tensor, where: Tensor) -> _ZonotopeForm:
        """Add one new noise term of the given radius for every marked entry of an example."""
        mask = by_rows(where)
        new = int(mask.sum(1).max()) if mask.numel() else 0
        index = mask.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :new]  # (B, new)
        values = by_rows(radius).masked_fill(~mask, 0.0).gather(1, index)
        added = center.new_zeros(new, *mask.shape).scatter_(2, index.t().unsqueeze(2), values.t().unsqueeze(2))
        terms = torch.cat([self._padded(terms), added.reshape(new, *center.shape)])
        self.count += new
        return _ZonotopeForm(center, terms, rest)

    def join(self, join: Callable[[list[Tensor]], Tensor], parts: list[_ZonotopeForm | Tensor]) -> _ZonotopeForm:
        batch = next(p.center.shape[0] for p in parts if isinstance(p, _ZonotopeForm))
        count = max(p.terms.shape[0] for p in parts if isinstance(p, _ZonotopeForm))

        def noise(part: _ZonotopeForm | Tensor) -> Tensor:
            if isinstance(part, _ZonotopeForm):
                missing = part.terms.new_zeros(count - part.terms.shape[0], *part.terms.shape[1:])
                return torch.cat([part.terms, missing]).flatten(0, 1)
            return torch.zeros_like(part).repeat(count, *([1] * (part.dim() - 1)))

        center = join([p.center if isinstance(p, _ZonotopeForm) else p for p in parts])
        rest = join([p.rest if isinstance(p, _ZonotopeForm) else torch.zeros_like(p) for p in parts])
        terms = join([noise(p) for p in parts]).reshape(count, batch, *center.shape[1:])
        return _ZonotopeForm(center, terms, rest)

    def constant(self, box: Interval) -> _ZonotopeForm:
        low, high = box.lower.double(), box.upper.double()
        radius = (high - low) / 2 * (1 + FEW_ROUNDINGS) + (low.abs() + high.abs()) * FEW_ROUNDINGS
        return self._extended((low + high) / 2, low.new_zeros(0, *low.shape), torch.zeros_like(low), radius, radius > 0)

    def upper(self, form: _ZonotopeForm, c: Tensor, d: Tensor) -> Tensor:
        wide = c.double()
        center = torch.einsum("bsk,bk->bs", wide, form.center) + d.double()
        spread = torch.einsum("bsk,ebk->ebs", wide, form.terms).abs().sum(0)
        rest = torch.einsum("bsk,bk->bs", wide.abs(), form.rest)
        size = torch.einsum("bsk,bk->bs", wide.abs(), form.size) + d.double().abs()
        terms = form.terms.shape[0] + math.prod(form.center.shape[1:]) + 64
        return center + spread + rest + size * (several_sums(terms, 4))


def _between(below: Slope, above: Slope) -> tuple[Tensor, Tensor]:
    """Return the slope between two, and how far they are from it."""
    low = torch.as_tensor(below, dtype=torch.float64)
    high = torch.as_tensor(above, dtype=torch.float64)
    return (low + high) / 2, (high - low).abs() / 2
