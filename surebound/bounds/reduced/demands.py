"""What all executions that are asked about have in common: linear inequalities of the values before a layer.

A case asks for executions in which all its rows are > 0, a part of a search for those whose ReLU inputs have given
signs. Both say that some value behind a layer is >= 0, and a backward pass from there to the layer says it of the
values before it: a.v + b >= 0. With any multiplier >= 0 that may be added to what bounds a unit of the layer.

property:  sound for the executions that are asked about, of which there may be none: then bounds may contradict
reference: Kotha et al. 2023 (bounds inside a network from what is demanded of its output)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.reduced.network import Reduced
from surebound.bounds.reduced.passes import Multipliers, Passes
from surebound.bounds.reduced.targets import TargetRow

#: Who demands something: a unit by its layer and place, or a case.
Source = tuple[str, int]
CASE: Source = ("", -1)


@dataclass(frozen=True, eq=False)
class Demands:
    """C inequalities a.v + offset >= 0 of the V columns before a layer, all roundings paid."""

    sources: tuple[Source, ...]
    a: Tensor  # (C, V)
    offset: Tensor  # (C,)

    def __len__(self) -> int:
        return len(self.sources)

    @classmethod
    def cat(cls, parts: Sequence[Demands]) -> Demands:
        """Join several about the same columns."""
        sources = tuple(source for part in parts for source in part.sources)
        return cls(sources, torch.cat([part.a for part in parts]), torch.cat([part.offset for part in parts]))

    def to(self, dtype: torch.dtype) -> Demands:
        """Convert to another dtype."""
        return Demands(self.sources, self.a.to(dtype), self.offset.to(dtype))

    def added(self, rows: TargetRow, weights: Tensor, largest: Tensor) -> TargetRow:
        """Add multiples (R, C), >= 0, to rows (R, V); ``largest`` (V,): max |v|."""
        weights = weights.clamp(min=0)
        size = (rows.a.abs() + weights @ self.a.abs()) @ largest + rows.offset.abs() + weights @ self.offset.abs()
        a, offset = torch.addmm(rows.a, weights, self.a), torch.addmv(rows.offset, weights, self.offset)
        return TargetRow(a, offset, size * (1 + len(self)))  # sums of 1 + C products each


def demands(reduced: Reduced, row: TargetRow | None = None, m: Multipliers | None = None) -> list[Demands]:
    """Return what is demanded before each layer: by signs of its units and of those behind it, and by a row.

    ``row`` (1, V): of the outputs, > 0 in the executions asked about, with multipliers ``m`` (1, U) that bound it.
    Signs are bounded with adaptive slopes.
    """
    passes = Passes(reduced, torch.float64)
    starts = [layer.at.start for layer in passes.layers]
    none = [Demands((), passes.lower.new_zeros(0, start), passes.lower.new_zeros(0)) for start in starts]
    found = [[each] for each in none]
    if row is not None and m is not None:
        _add(found, passes, (CASE,), row, m.to(torch.float64), len(starts))
    slopes = torch.cat([layer.slope for layer in reduced.layers]).double() if starts else passes.lower[:0]
    for number, layer in enumerate(reduced.layers):
        index = layer.fixed.nonzero()[:, 0]
        if not len(index):
            continue
        sign, rows = layer.fixed[index].double(), layer.rows.select(index)
        a = passes.lower.new_zeros(len(index), starts[number])
        a[:, : rows.up.shape[1]] = torch.where(sign.unsqueeze(1) > 0, rows.up.double(), -rows.low.double())
        offset = torch.where(sign > 0, rows.up_offset, -rows.low_offset)
        sources = tuple((layer.name, int(place)) for place in layer.place[index])
        found[number].append(Demands(sources, a, offset))
        alphas = slopes.expand(len(index), -1)
        plain = Multipliers(reduced.signs.expand(len(index), -1), alphas, torch.zeros_like(alphas))
        _add(found, passes, sources, TargetRow(a, offset, None), plain, number)
    return [Demands.cat(parts) for parts in found]


def _add(
    found: list[list[Demands]],
    passes: Passes,
    sources: tuple[Source, ...],
    rows: TargetRow,
    m: Multipliers,
    count: int,
) -> None:
    """Add what rows (C, V) over the first ``count`` layers demand before each of these."""
    left = list[tuple[Tensor, Tensor]]()
    passes.pull(rows.a, rows.offset, m, rows.rounding_size, left)
    for number, (a, offset) in zip(reversed(range(count)), left, strict=True):
        found[number].append(Demands(sources, a, offset))


class Weighing:
    """Multipliers (R, C) of demands while rows a.v + offset are optimised by signs of derivatives (swing.py)."""

    def __init__(self, passes: Passes, a: Tensor, offset: Tensor, demands: Demands, start: Tensor) -> None:
        self._a, self._offset, self._demands = a, offset, demands
        self.best, self._now, self._tilt = start.clone(), start.clone(), torch.zeros_like(start)
        outputs = [layer.upper.clamp(min=0) for layer in passes.layers]
        reach = torch.cat([passes.upper_end - passes.lower, *outputs])[: a.shape[1]]
        # heuristic: multipliers are as large as what they outweigh
        self._unit = (a.abs() @ reach).unsqueeze(1) / (demands.a.abs() @ reach).clamp(min=1e-30)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Return the rows with their multiples of the demands."""
        demands = self._demands
        a, offset = torch.addmm(self._a, self._now, demands.a), torch.addmv(self._offset, self._now, demands.offset)
        return a, offset

    def keep(self, active: Tensor, better: Tensor) -> None:
        """Keep the multipliers of rows ``better`` of those that are ``active``."""
        self.best[active[better]] = self._now[better]

    def step(self, v: Tensor, size: float, fresh: float) -> None:
        """Move against the demands' values at the maximisers v (R, V): more of what is broken, less of the others."""
        values = torch.addmm(self._demands.offset, v[:, : self._demands.a.shape[1]], self._demands.a.t())
        self._tilt.lerp_(values.sign().neg(), fresh)
        self._now = torch.addcmul(self._now, self._tilt, self._unit, value=size).clamp_(min=0)

    def select(self, keep: Tensor) -> None:
        """Go on with some of the rows."""
        self._a, self._offset, self._now = self._a[keep], self._offset[keep], self._now[keep]
        self._tilt, self._unit = self._tilt[keep], self._unit[keep]
