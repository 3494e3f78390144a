"""A network over one box as a small dense problem: its input and its unstable ReLUs, everything between them folded.

A stable ReLU is the identity or zero, so the input of an unstable one is an affine function of the network's input and
of the unstable ReLUs before it. A network trained for its bounds has a few hundred unstable ReLUs among thousands: one
reduction per example makes every later bound of it a handful of small matrix products (bounds/reduced/passes.py).

Sound in the mode of the relaxation that it is made from: a row a with its offsets means that the value z which an
execution computes satisfies a.v + low_offset <= z <= a.v + up_offset, where v holds the input and the unstable ReLUs
*as computed in that execution*; the backward pass that makes the row covers its roundings (docs/soundness.md,
Lemma 3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from surebound.bounds.reduced.matrix import Matrix, matrix_of
from surebound.interval import Interval
from surebound.norm_ball import Ball


@dataclass(frozen=True, eq=False)
class Rows:
    """Affine bounds of R values by the first V columns of a reduced network's v = (input, unstable ReLUs).

    ``low.v + low_offset <= value <= up.v + up_offset``; the two matrices are one object where all that lies between
    is affine.
    """

    up: Tensor  # (R, V) in the dtype of the backward passes that made it
    low: Tensor  # (R, V)
    up_offset: Tensor  # (R,) float64
    low_offset: Tensor  # (R,) float64

    def __len__(self) -> int:
        return len(self.up)

    @cached_property
    def matrices(self) -> tuple[Matrix, Matrix]:
        """The two as passes multiply with them; they are one object where they are one here."""
        up = matrix_of(self.up)
        return up, up if self.low is self.up else matrix_of(self.low)

    def select(self, index: Tensor) -> Rows:
        """Select some of the values."""
        up = self.up[index]
        low = up if self.low is self.up else self.low[index]
        return Rows(up, low, self.up_offset[index], self.low_offset[index])

    def over(self, columns: Tensor) -> Rows:
        """Return the rows over some of all columns, ascending; those beyond their own V do not count."""
        own = columns[columns < self.up.shape[1]]
        up = self.up[:, own]
        return Rows(up, up if self.low is self.up else self.low[:, own], self.up_offset, self.low_offset)


@dataclass(frozen=True, eq=False)
class Layer:
    """The unstable entries of one activation, U of them: y = max(left x, right x), x the value that ``rows`` bound.

    chord x + top >= y >= a x + bottom for every slope a in [left, right] and x in [lower, upper].
    """

    name: str
    place: Tensor  # (U,) flat positions in the activation's value, ascending
    rows: Rows
    lower: Tensor  # (U,) bounds of x
    upper: Tensor
    chord: Tensor  # (U,)
    top: Tensor  # (U,)
    bottom: Tensor  # (U,) <= 0: rounding of the activation itself; 0 for ReLU
    slope: Tensor  # (U,) the adaptive lower slope
    sides: tuple[float, float]  # left, right
    signs: Tensor | None = None  # (U,) int8: -1 (x <= 0), 0 (free), +1 in the executions asked about; None: all free

    def __len__(self) -> int:
        return len(self.place)

    def select(self, units: Tensor, columns: Tensor) -> Layer:
        """Select some of the entries, their rows over some columns."""
        found = self.take(units)
        return replace(found, rows=found.rows.over(columns))

    def take(self, units: Tensor) -> Layer:
        """Select some of the entries."""
        names = ("place", "lower", "upper", "chord", "top", "bottom", "slope")
        some = {name: getattr(self, name)[units] for name in names}
        signs = None if self.signs is None else self.signs[units]
        return replace(self, rows=self.rows.select(units), signs=signs, **some)

    @property
    def fixed(self) -> Tensor:
        """(U,) int8: the signs."""
        return torch.zeros(len(self), dtype=torch.int8) if self.signs is None else self.signs


@dataclass(frozen=True, eq=False)
class Reduced:
    """One example's network, reduced. Each layer reads the input and the layers before it, the outputs all of them."""

    lower: Tensor  # (n,) the box of the flattened input
    upper: Tensor
    layers: tuple[Layer, ...]
    outputs: Rows  # of a specification
    ball: Ball | None = None  # (1, n): the inputs that are asked about, of the norm l1 or l2, inside of the box

    @classmethod
    def of(cls, box: Interval, layers: tuple[Layer, ...], outputs: Rows) -> Reduced:
        """Make a reduced network over one box (1, ...) or ball."""
        ball = None
        if isinstance(box, Ball) and box.norm in (1, 2):
            ball = box.within(Interval(box.lower.flatten(1), box.upper.flatten(1)), box.origin.flatten(1))
        return cls(box.lower[0].flatten(), box.upper[0].flatten(), layers, outputs, ball)

    def ball_of(self, inputs: Tensor) -> Ball | None:
        """Return the ball that some of the inputs (m,) lie in: one of the same radius."""
        if self.ball is None:
            return None
        box = Interval(self.ball.lower[:, inputs], self.ball.upper[:, inputs])
        return self.ball.within(box, self.ball.origin[:, inputs])

    @property
    def wide(self) -> bool:
        """Were its rows made with wider coefficients than the network's own dtype?"""
        return self.outputs.up.dtype != self.lower.dtype

    @property
    def signs(self) -> Tensor:
        """(U,) int8: the signs that are fixed, of all layers together."""
        return torch.cat([layer.fixed for layer in self.layers]) if self.layers else torch.zeros(0, dtype=torch.int8)

    @property
    def unstable(self) -> int:
        """U, of all layers together."""
        return sum(len(layer) for layer in self.layers)
