"""Symbolic intervals: every value lies between two linear functions of the input (Wang et al. 2018)."""

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
from surebound.numerics import FEW_ROUNDINGS, Soundness, nothing_known, round_up, several_sums
from surebound.rules.relax.lines import Lines, Slope


@dataclass(frozen=True)
class Symbolic:
    """Symbolic intervals with Neurify's ReLU: parallel lines of slope u / (u - l) above and below.

    requirement: soundness "real" or "deployed"
    property:    sound; not complete; intersected with interval bounds at every value
    reference:   Wang et al. 2018 (ReluVal; Neurify, section 3.1)
    """

    within_intervals: ClassVar[bool] = False  # their rows are not merged with the last layer's

    memory: int = MEMORY

    def margins(self, program: Program, box: Interval, c: Tensor, d: Tensor, mode: Soundness) -> Tensor:
        """Bound c.z + d from above, c (B, S, K), d (B, S): (B, S)."""
        upper = torch.empty(c.shape[:2], dtype=box.dtype, device=box.device)
        for part, block in blocks(program, box, self.memory, noise=False):
            domain = _Domain(block)
            form = Forward(program, mode, domain).run(block)
            upper[part] = round_up(domain.upper(form, c[part], d[part]), box.dtype)
        return nothing_known(upper)


@dataclass(frozen=True)
class _Line:
    """coefficients . x + offset of the N inputs x; all float64."""

    coefficients: Tensor  # (N, B, *value)
    offset: Tensor  # (B, *value)

    def __add__(self, other: _Line) -> _Line:
        return _Line(self.coefficients + other.coefficients, self.offset + other.offset)

    def __sub__(self, other: _Line) -> _Line:
        return _Line(self.coefficients - other.coefficients, self.offset - other.offset)

    def __mul__(self, factor: Tensor | float) -> _Line:
        return _Line(self.coefficients * factor, self.offset * factor)

    def shifted(self, by: Tensor) -> _Line:
        return _Line(self.coefficients, self.offset + by)

    def map(self, fn: Callable[[Tensor], Tensor]) -> _Line:
        count, batch = self.coefficients.shape[:2]
        moved = fn(self.coefficients.flatten(0, 1))
        return _Line(moved.reshape(count, batch, *moved.shape[1:]), fn(self.offset))


@dataclass(frozen=True)
class _SymbolicForm:
    lower: _Line
    upper: _Line


class _Domain:
    """Forms over one batch of boxes."""

    def __init__(self, box: Interval) -> None:
        low, high = box.lower.double().flatten(1).t(), box.upper.double().flatten(1).t()  # (N, B)
        self.center, self.radius = (
            (low + high) / 2,
            (high - low) / 2 * (1 + FEW_ROUNDINGS) + high.abs() * FEW_ROUNDINGS,
        )
        self.reach = torch.maximum(low.abs(), high.abs())

    def _over(self, weights: Tensor, coefficients: Tensor) -> Tensor:
        """Sum weights (N, B) times coefficients (N, B, *value): (B, *value)."""
        return (weights.reshape(*weights.shape, *([1] * (coefficients.dim() - 2))) * coefficients).sum(0)

    def _size(self, *lines: _Line) -> Tensor:
        """Bound the sum of the sizes of the lines' terms, which rounding is relative to."""
        sizes = [self._over(self.reach, line.coefficients.abs()) + line.offset.abs() for line in lines]
        return torch.stack(sizes).sum(0)

    def start(self, box: Interval) -> _SymbolicForm:
        count, batch = self.center.shape
        eye = torch.eye(count, out=self.center.new_empty(count, count)).unsqueeze(1).expand(-1, batch, -1)
        line = _Line(eye.reshape(count, *box.shape), self.center.new_zeros(box.shape))
        return _SymbolicForm(line, line)

    def bounds(self, form: _SymbolicForm) -> Interval:
        ends = []
        for line, sign in ((form.lower, -1.0), (form.upper, 1.0)):
            middle = self._over(self.center, line.coefficients) + line.offset
            spread = self._over(self.radius, line.coefficients.abs())
            slack = self._size(line) * several_sums(self.center.shape[0] + 64, 4)
            ends.append(middle + sign * (spread + slack))
        return Interval(ends[0], ends[1])

    def affine(self, map: Map, form: _SymbolicForm) -> _SymbolicForm:
        middle, half = (form.upper + form.lower) * 0.5, (form.upper - form.lower) * 0.5
        through, across = middle.map(map.linear), half.map(map.absolute)
        error = map.own + map.absolute(self._size(form.lower, form.upper)) * map.rate
        line = through.shifted(map.constant.expand(through.offset.shape))
        return _SymbolicForm((line - across).shifted(-error), (line + across).shifted(error))

    def relaxed(self, lines: Lines, boxes: list[Interval], forms: list[_SymbolicForm], loose: Tensor) -> _SymbolicForm:
        lower, upper = (end.double() for end in lines.intercepts)
        empty = lower.new_zeros(self.center.shape[0], *lower.shape)
        low, high = _Line(empty, lower), _Line(empty, upper)
        error = (lower.abs() + upper.abs()) * FEW_ROUNDINGS
        for below, above, form in zip(lines.lower, lines.upper, forms, strict=True):
            low, high = (
                low + _scaled(below, form.lower, form.upper),
                high + _scaled(above, form.upper, form.lower),
            )
            steepest = torch.maximum(_number(below).abs(), _number(above).abs())
            error = error + steepest * self._size(form.lower, form.upper) * FEW_ROUNDINGS
        return _SymbolicForm(low.shifted(-error), high.shifted(error))

    def join(self, join: Callable[[list[Tensor]], Tensor], parts: list[_SymbolicForm | Tensor]) -> _SymbolicForm:
        count = self.center.shape[0]

        def side(pick: Callable[[_SymbolicForm], _Line]) -> _Line:
            offsets = join([pick(p).offset if isinstance(p, _SymbolicForm) else p for p in parts])
            flat = [
                pick(p).coefficients.flatten(0, 1)
                if isinstance(p, _SymbolicForm)
                else torch.zeros_like(p).repeat(count, *([1] * (p.dim() - 1)))
                for p in parts
            ]
            return _Line(join(flat).reshape(count, *offsets.shape), offsets)

        return _SymbolicForm(side(lambda f: f.lower), side(lambda f: f.upper))

    def constant(self, box: Interval) -> _SymbolicForm:
        empty = self.center.new_zeros(self.center.shape[0], *box.shape)
        return _SymbolicForm(_Line(empty, box.lower.double()), _Line(empty, box.upper.double()))

    def upper(self, form: _SymbolicForm, c: Tensor, d: Tensor) -> Tensor:
        wide = c.double()
        positive = wide.clamp(min=0)
        negative = wide - positive

        def combined(up: Tensor, low: Tensor, subscripts: str) -> Tensor:
            return torch.einsum(subscripts, positive, up) + torch.einsum(subscripts, negative, low)

        coefficients = combined(form.upper.coefficients, form.lower.coefficients, "bsk,nbk->nbs")
        offset = combined(form.upper.offset, form.lower.offset, "bsk,bk->bs") + d.double()
        middle = (self.center.unsqueeze(2) * coefficients).sum(0) + offset
        spread = (self.radius.unsqueeze(2) * coefficients.abs()).sum(0)
        size = torch.einsum("bsk,bk->bs", wide.abs(), self._size(form.lower, form.upper)) + d.double().abs()
        terms = self.center.shape[0] + math.prod(form.upper.offset.shape[1:]) + 64
        return middle + spread + size * (several_sums(terms, 4))


def _number(slope: Slope) -> Tensor:
    return torch.as_tensor(slope, dtype=torch.float64)


def _scaled(slope: Slope, same: _Line, other: _Line) -> _Line:
    """Return slope times a value bounded by ``same``, or by ``other`` where the slope is negative."""
    factor = _number(slope)
    positive = factor.clamp(min=0)
    if bool((factor >= 0).all()):
        return same * factor
    return same * positive + other * (factor - positive)
