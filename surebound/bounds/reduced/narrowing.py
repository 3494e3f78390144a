"""A reduced network over a part of its box: bounds of its ReLUs anew, and fewer of them.

The rows of a reduced network hold for every execution over its box, so for those over a part of it. Bounds of the
ReLUs' inputs over the part come from passes over these rows, layer by layer, at a small part of the cost of passes
through the network itself; and ReLUs that have one sign there are folded into the rows of those behind them.

property:  sound in the mode of the reduction; exact arithmetic would give CROWN's own bounds over the part
reference: docs/soundness.md, Lemma 3; Xu et al. 2021 (with optimised slopes)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surebound.bounds.linear.intermediate import MEMORY
from surebound.bounds.reduced.inner import optimised_bounds
from surebound.bounds.reduced.network import Layer, Reduced, Rows
from surebound.bounds.reduced.passes import bounds_of_rows
from surebound.bounds.reduced.swing import Swing
from surebound.interval import Interval, intersect
from surebound.numerics import FEW_ROUNDINGS, UNDERFLOW, several_sums, slightly_up


def narrowed(reduced: Reduced, lower: Tensor, upper: Tensor, swing: Swing | None = None) -> Reduced:
    """Return the network over a part [lower, upper] (n,) of its box, all of its ReLUs with bounds of their own there.

    ``swing``: optimise the slopes of bounds that have both signs.
    """
    done: tuple[Layer, ...] = ()
    for layer in reduced.layers:
        known = Interval(layer.lower, layer.upper)
        found = intersect(known, bounds_of_rows(Reduced(lower, upper, done, layer.rows)))
        open_ = ((found.lower < 0) & (found.upper > 0)).nonzero()[:, 0]
        if swing is not None and done and len(open_):
            part = Reduced(lower, upper, done, layer.rows.select(open_))
            best = intersect(found.take(open_), optimised_bounds(part, swing, MEMORY))
            found = Interval(found.lower.index_copy(0, open_, best.lower), found.upper.index_copy(0, open_, best.upper))
        done = (*done, rebounded(layer, found))
    return replace(reduced, lower=lower, upper=upper, layers=done)


def with_sign(reduced: Reduced, unit: int, sign: int) -> Reduced:
    """Return the network for the executions in which one of its ReLUs (of U) has an input of the given sign."""
    layers = list(reduced.layers)
    for number, layer in enumerate(layers):
        if unit < len(layer):
            at = torch.tensor([unit])
            lower, upper = layer.lower.clone(), layer.upper.clone()
            if sign > 0:
                lower[at] = lower[at].clamp(min=0)
            else:
                upper[at] = upper[at].clamp(max=0)
            layers[number] = replace(layer, lower=lower, upper=upper, signs=layer.fixed.index_fill(0, at, sign))
            return replace(reduced, layers=tuple(layers))
        unit -= len(layer)
    raise IndexError(f"a network of {reduced.unstable} ReLUs has no number {reduced.unstable + unit}")


def rebounded(layer: Layer, x: Interval) -> Layer:
    """Return a layer whose inputs have the bounds x (U,).

    max(left x, right x) is convex: above a chord of any slope it lies highest at an end. Below, a line through 0 of any
    slope between the two holds everywhere.
    """
    left, right = layer.sides
    low, high = x.lower.double(), x.upper.double()
    positive, negative = low >= 0, high <= 0
    chord = (right * high - left * low) / torch.where(positive | negative, 1.0, high - low)
    chord = torch.where(positive, right, torch.where(negative, left, chord)).clamp(left, right)
    ends = [torch.maximum(left * end, right * end) - chord * end for end in (low, high)]
    steepest = 2 * max(abs(left), abs(right))
    lost = torch.maximum(low.abs(), high.abs()) * (steepest * FEW_ROUNDINGS) + UNDERFLOW
    stable = (positive & (right in (0.0, 1.0))) | (negative & (left in (0.0, 1.0)))  # nothing is rounded there
    top = torch.maximum(*ends).clamp(min=0) + torch.where(stable, 0.0, lost) - layer.bottom.double()
    steeper, flatter = (layer.slope.new_tensor(side) for side in (right, left))
    slope = torch.where(positive | (~negative & (high > -low)), steeper, flatter)
    return replace(layer, lower=x.lower, upper=x.upper, chord=chord, top=top, slope=slope)


@dataclass(frozen=True, eq=False)
class _Folding:
    """The columns of a network by those that are kept: y = moved v + constant, up to ``error``, for all old columns."""

    moved: Tensor  # (V, W) float64
    constant: Tensor  # (V,)
    error: Tensor  # (V,)
    largest: Tensor  # (W,) max |v|

    @classmethod
    def of_inputs(cls, reduced: Reduced) -> _Folding:
        largest = torch.maximum(reduced.lower.abs(), reduced.upper.abs()).double()
        nothing = torch.zeros_like(largest)
        return cls(torch.eye(len(largest), dtype=torch.float64), nothing, nothing, largest)

    def rows(self, rows: Rows) -> Rows:
        """Return rows over the kept columns; offsets pay for errors, and for the roundings of these sums."""
        count = rows.up.shape[1]
        a, moved = rows.up.double(), self.moved[:count]
        constant, error = self.constant[:count], self.error[:count]
        # What roundings are relative to: the sizes of all products that are summed.
        size = moved.abs() @ self.largest + constant.abs()
        offsets = rows.up_offset.abs() + rows.low_offset.abs()
        rate = several_sums(sum(moved.shape) + 64, 16)
        lost = slightly_up(a.abs() @ (error + size * rate) + offsets * rate) + UNDERFLOW
        shift = a @ constant
        found = a @ moved
        return Rows(found, found, rows.up_offset + shift + lost, rows.low_offset + shift - lost)

    def and_layer(self, layer: Layer, rows: Rows, kept: Tensor) -> _Folding:
        """Add the columns of a layer, whose rows over the kept columns are given; ``kept`` (U,): which stay ReLUs."""
        count, wide = len(layer), self.moved.shape[1]
        left, right = (rows.up.new_tensor(s) for s in layer.sides)  # float64: float32 ones are other slopes
        side = torch.where(layer.lower >= 0, right, left).masked_fill(kept, 0.0)
        index = kept.nonzero()[:, 0]
        moved = torch.cat([rows.up * side.unsqueeze(1), rows.up.new_zeros(count, len(index))], 1)
        moved[index, wide + torch.arange(len(index))] = 1.0
        middle, half = 0.5 * (rows.up_offset + rows.low_offset), 0.5 * (rows.up_offset - rows.low_offset)
        size = (rows.up.abs() @ self.largest + middle.abs() + half) * FEW_ROUNDINGS
        lost = slightly_up(side.abs() * (half + size) - layer.bottom.double()) + UNDERFLOW
        steepest = max(1.0, *(abs(s) for s in layer.sides))
        reach = torch.maximum(layer.lower.abs(), layer.upper.abs()).double()
        before = torch.cat([self.moved, self.moved.new_zeros(len(self.moved), len(index))], 1)
        return _Folding(
            torch.cat([before, moved]),
            torch.cat([self.constant, side * middle]),
            torch.cat([self.error, lost.masked_fill(kept, 0.0)]),
            torch.cat([self.largest, slightly_up(reach * steepest - layer.bottom.double())[index]]),
        )


def folded(reduced: Reduced) -> Reduced:
    """Return the network without the ReLUs that have one sign; the same if something between them is not affine."""
    if any(rows.low is not rows.up for rows in (reduced.outputs, *(layer.rows for layer in reduced.layers))):
        return reduced
    columns, layers = _Folding.of_inputs(reduced), list[Layer]()
    for layer in reduced.layers:
        rows, kept = columns.rows(layer.rows), (layer.lower < 0) & (layer.upper > 0)
        kept = kept | layer.lower.isnan() | layer.upper.isnan() | (layer.fixed != 0)  # a sign is an inequality too
        columns = columns.and_layer(layer, rows, kept)
        index = kept.nonzero()[:, 0]
        if len(index):
            layers.append(replace(layer.take(index), rows=rows.select(index)))
    return replace(reduced, layers=tuple(layers), outputs=columns.rows(reduced.outputs))
