"""Inequalities a.v + b >= 0 of the values of a reduced network, and what they say about each column v.

Where all other columns are as large as they can be, a column must make up for what is missing: with ``most`` the
largest value of the left side, a column with a > 0 lies at most most / a below its upper end. Sums are moved outwards
by their rounding error bound, so that nothing is refuted or narrowed away that holds in exact arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.reduced.passes import Passes
from surebound.interval import Interval
from surebound.numerics import FEW_ROUNDINGS, UNDERFLOW, several_sums
from surebound.search.signs.ranges import Ranges


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A matrix (R, W), and its entries that are not 0."""

    row: Tensor  # (E,)
    column: Tensor  # (E,)
    values: Tensor  # (E,)
    positive: Tensor  # (R, W): its positive part
    negative: Tensor  # (R, W)

    @classmethod
    def of(cls, matrix: Tensor) -> Coefficients:
        """Take a matrix apart."""
        row, column = matrix.nonzero(as_tuple=True)
        positive = matrix.clamp(min=0)
        return cls(row, column, matrix[row, column], positive, matrix - positive)

    def largest(self, v: Interval) -> Tensor:
        """Maximise the rows over v (N, W), up to rounding: (N, R)."""
        return v.upper @ self.positive.t() + v.lower @ self.negative.t()

    def smallest(self, v: Interval) -> Tensor:
        """Minimise the rows over v (N, W), up to rounding: (N, R)."""
        return v.lower @ self.positive.t() + v.upper @ self.negative.t()

    def shares(self, most: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest most / |a| of each column over rows where a > 0, and where a < 0: (N, W) each.

        most (N, R): the largest value of each row's inequality.
        """
        share = most[:, self.row] / self.values.abs()
        found = []
        for side in (self.values > 0, self.values < 0):
            least = most.new_full((len(most), self.positive.shape[1]), torch.inf)
            at = self.column[side].expand(len(most), -1)
            found.append(least.scatter_reduce(1, at, share[:, side], "amin"))
        return found[0], found[1]


def rate(passes: Passes) -> float:
    """Bound the rounding error of a sum over all columns and a few more terms, relative to the sum of their sizes."""
    return several_sums(passes.columns + 64, 4)


@dataclass(frozen=True, eq=False)
class LayerInequalities:
    """The rows of the inputs z of one layer's ReLUs, low.v + low_offset <= z <= up.v + up_offset, and the ReLUs."""

    at: slice  # of the ReLUs' outputs in V
    own: slice  # of their inputs in U
    up: Coefficients
    low: Coefficients
    up_offset: Tensor  # (R,)
    low_offset: Tensor
    slack: Tensor  # (R,): the rounding error bound of a row and of its difference from z
    left: float
    right: float
    bottom: Tensor  # (R,) <= 0: the rounding of the activation itself

    @classmethod
    def of(cls, passes: Passes, number: int) -> LayerInequalities:
        """Return those of the layer of that number."""
        layer = passes.layers[number]
        up = Coefficients.of(layer.up.dense())
        low = up if layer.low is layer.up else Coefficients.of(layer.low.dense())
        slack = (layer.size + layer.largest) * rate(passes) + UNDERFLOW
        offsets = layer.up_offset, layer.low_offset
        return cls(layer.at, layer.own, up, low, *offsets, slack, layer.left, layer.right, layer.bottom)

    @property
    def before(self) -> slice:
        """The columns that the rows read."""
        return slice(0, self.up.positive.shape[1])

    def reach(self, ranges: Ranges) -> Interval:
        """Bound z over the columns before it: (N, R)."""
        v = ranges.columns(self.before)
        lower, upper = self.low.smallest(v) + self.low_offset, self.up.largest(v) + self.up_offset
        return Interval(lower - self.slack, upper + self.slack)

    def forward(self, ranges: Ranges) -> Ranges:
        """Narrow the ReLUs' outputs by their inputs."""
        z = ranges.inputs(self.own)
        ends = [torch.maximum(self.left * end, self.right * end) for end in (z.lower, z.upper)]
        lower, upper = torch.minimum(*ends), torch.maximum(*ends)
        lower = torch.where((z.lower < 0) & (z.upper > 0), lower.clamp(max=0), lower)
        lower, upper = lower - lower.abs() * FEW_ROUNDINGS, upper + upper.abs() * FEW_ROUNDINGS
        return ranges.with_columns(self.at, Interval(lower + self.bottom, upper - self.bottom))

    def backward(self, ranges: Ranges) -> Ranges:
        """Narrow the ReLUs' inputs by their outputs, and the columns before them by these."""
        ranges = ranges.with_inputs(self.own, self._preimages(ranges.columns(self.at)))
        v, z = ranges.columns(self.before), ranges.inputs(self.own)
        above = self.up.largest(v) + (self.up_offset - z.lower) + self.slack  # up.v + up_offset - z.lower >= 0
        below = (z.upper - self.low_offset) - self.low.smallest(v) + self.slack  # z.upper - low.v - low_offset >= 0
        (up, down), (other_down, other_up) = self.up.shares(above), self.low.shares(below)
        ranges = ranges.refute((above < 0).any(1) | (below < 0).any(1))
        return ranges.within(self.before, torch.minimum(up, other_up), torch.minimum(down, other_down))

    def _preimages(self, y: Interval) -> Interval:
        """Bound z where y = max(left z, right z), wrong by at most -bottom; infinite where that says nothing."""
        least, most = y.lower + self.bottom, y.upper - self.bottom
        unknown = torch.full_like(most, torch.inf)
        upper = most / self.right if self.right > 0 else unknown
        lower = most / self.left if self.left < 0 else -unknown
        if self.left >= 0 and self.right > 0:  # y > 0 only where z > 0
            lower = torch.where(least > 0, least / self.right, lower)
        return Interval(lower - lower.abs() * FEW_ROUNDINGS, upper + upper.abs() * FEW_ROUNDINGS)


def narrowed_by_rows(ranges: Ranges, a: Tensor, b: Tensor, passes: Passes) -> Ranges:
    """Narrow the first W columns by a.v + b >= 0, a (N, S, W), b (N, S); by nothing where b is infinite."""
    at = slice(0, a.shape[2])
    v, positive = ranges.columns(at), a.clamp(min=0)
    most = torch.einsum("nsw,nw->ns", positive, v.upper) + torch.einsum("nsw,nw->ns", a - positive, v.lower) + b
    most = most + (a.abs() @ passes.largest[at] + b.abs()) * rate(passes) + UNDERFLOW
    share = most.unsqueeze(2) / a.abs()
    up, down = (torch.where(side, share, torch.inf).amin(1) for side in (a > 0, a < 0))
    return ranges.refute((most < 0).any(1)).within(at, up, down)
