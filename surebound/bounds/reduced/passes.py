"""Linear bounds of a reduced network: backward passes of many sub-problems at once, and their gradients.

N sub-problems, each an output row, signs of unstable ReLUs (U), lower slopes (alpha) and multipliers of the splits
(beta). The bound is the maximum of a.x + offset over the box, where a comes from one backward pass; it is convex and
piecewise linear in the multipliers, and by Danskin's theorem its derivative by a multiplier is what that multiplies at
the maximiser: one forward pass from the best corner along the same lines, so that a step of the optimisation costs two
passes and no graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from surebound.bounds.linear.ball import ball_corner, ball_maximum
from surebound.bounds.reduced.matrix import Matrix
from surebound.bounds.reduced.network import Layer, Reduced, Rows
from surebound.interval import Interval
from surebound.kernels.ascent import UnitLines, lines_along, lines_back
from surebound.numerics import Soundness, nothing_known, round_up, several_sums, slightly_up, tiny


@dataclass(frozen=True, eq=False)
class Multipliers:
    """Signs, slopes and multipliers of sub-problems, (N, U) each over the unstable entries of all layers."""

    signs: Tensor  # int8: -1 (input <= 0), 0 (free), +1
    alphas: Tensor
    betas: Tensor

    def __getitem__(self, index: Tensor) -> Multipliers:
        return Multipliers(*(getattr(self, part.name)[index] for part in fields(self)))

    @classmethod
    def cat(cls, parts: Sequence[Multipliers]) -> Multipliers:
        """Join the multipliers of several batches."""
        return cls(*(torch.cat([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def unsplit(self) -> Multipliers:
        """Remove the signs."""
        return Multipliers(torch.zeros_like(self.signs), self.alphas, torch.zeros_like(self.betas))

    def to(self, dtype: torch.dtype) -> Multipliers:
        """Convert to another dtype."""
        return Multipliers(self.signs, self.alphas.to(dtype), self.betas.to(dtype))


@dataclass(frozen=True, eq=False)
class Pass:
    """One backward pass."""

    a: Tensor  # (N, n) coefficients of the input
    own: Tensor  # (N, U) coefficients of the unstable ReLUs
    through: Tensor  # (N, U) coefficients of their inputs
    offset: Tensor  # (N,)
    size: Tensor | None  # (N,) what all roundings of the pass are relative to; None: not sound
    lines: dict[int, _Lines]  # by layer; those that are not here follow from the multipliers
    m: Multipliers | None = None

    def select(self, index: Tensor) -> Pass:
        """Select some of the sub-problems, without their lines."""
        size = None if self.size is None else self.size[index]
        return Pass(self.a[index], self.own[index], self.through[index], self.offset[index], size, {})


@dataclass(frozen=True, eq=False)
class _Layer:
    """A layer in the dtype of the passes, with the columns that its entries have."""

    at: slice  # in v
    own: slice  # in U
    up: Matrix
    low: Matrix
    up_offset: Tensor
    low_offset: Tensor
    rough: UnitLines | None  # for passes that are not sound, where ``low`` is ``up``: its middle is between the offsets
    chord: Tensor
    top: Tensor
    bottom: Tensor
    lower: Tensor
    upper: Tensor
    left: float
    right: float
    rounds: bool  # is the activation itself rounded?
    size: Tensor  # (U,) |row| max|v| + |offset|
    largest: Tensor  # (U,) max |x|


class Passes:
    """The passes of one reduced network in one dtype; float64 ones are sound (``upper``)."""

    def __init__(self, reduced: Reduced, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.lower, self.upper_end = reduced.lower.to(dtype), reduced.upper.to(dtype)
        self.inputs = len(reduced.lower)
        ends = Interval(self.lower.unsqueeze(0), self.upper_end.unsqueeze(0))
        self.ball = None if reduced.ball is None else reduced.ball.within(ends)
        self.outputs = _in(reduced.outputs, dtype)
        largest = [torch.maximum(self.lower.abs(), self.upper_end.abs())]
        self.layers: list[_Layer] = []
        first = self.inputs
        for layer in reduced.layers:
            found = _prepared(layer, first, self.inputs, torch.cat(largest), dtype)
            self.layers.append(found)
            steepest = max(1.0, abs(found.left), abs(found.right))
            largest.append(slightly_up(found.largest * steepest - found.bottom))
            first += len(layer)
        self.columns, self.largest = first, torch.cat(largest)
        #: (U,) the smallest and the largest lower slope of each entry.
        self.least = _spread([(x, x.left) for x in self.layers], self.lower)
        self.steepest = _spread([(x, x.right) for x in self.layers], self.lower)

    @property
    def unstable(self) -> int:
        """U."""
        return self.columns - self.inputs

    def pull(
        self,
        a: Tensor,
        offset: Tensor,
        m: Multipliers,
        rounding_size: Tensor | None = None,
        left: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Pass:
        """Go back from coefficients a (N, V) of the first V columns and offsets (N,) to the input.

        ``rounding_size`` (N,): the size that roundings of a and the offsets are relative to, where they are not exact.
        ``left`` is given what bounds the row before each layer that it reads, from the last to the first: coefficients
        (N, V) of the columns before that layer, and offsets (N,) with all roundings paid. Float64 passes only.
        """
        count, given = a.shape
        work = a.new_zeros(count, self.columns)
        work[:, :given] = a
        size = work.abs() @ self.largest + offset.abs() if self.dtype == torch.float64 else None
        if size is not None and rounding_size is not None:
            size = size + rounding_size
        through, known = torch.zeros_like(m.alphas, memory_format=torch.contiguous_format), dict[int, _Lines]()
        offset = offset.clone()
        for number, layer in reversed(list(enumerate(self.layers))):
            if layer.at.start >= given:
                continue
            own = work[:, layer.at]
            if layer.rough is not None:
                p, signs = through[:, layer.own], m.signs[:, layer.own]
                lines_back(own, signs, m.alphas[:, layer.own], m.betas[:, layer.own], layer.rough, p, offset)
                layer.up.add_back(work, p)
                continue
            known[number] = lines = _Lines.of(layer, m, sound=size is not None)
            positive = own.clamp(min=0)
            negative = own - positive
            p = torch.addcmul(positive * lines.upper, negative, lines.lower)
            if lines.pushes is not None:
                p = p + lines.pushes
            offset = offset + (positive @ lines.top if lines.top.dim() == 1 else (positive * lines.top).sum(1))
            up = p.clamp(min=0)
            down = p - up
            offset = offset + up @ layer.up_offset + down @ layer.low_offset
            if layer.rounds:
                offset = offset + negative @ layer.bottom
            if size is not None:
                pushed = own.abs() if lines.pushes is None else own.abs() + lines.pushes.abs()
                size = size + pushed @ (2 * layer.largest) + p.abs() @ layer.size
            through[:, layer.own] = p
            if layer.low is layer.up:
                layer.up.add_back(work, p)
            else:
                layer.up.add_back(work, up)
                layer.low.add_back(work, down)
            if left is not None and size is not None:
                left.append((work[:, : layer.at.start].clone(), self._paid(offset, size)))
        return Pass(work[:, : self.inputs], work[:, self.inputs :], through, offset, size, known, m)

    def pull_through(
        self, a: Tensor, offset: Tensor, signs: Tensor, through: Tensor, rounding_size: Tensor | None = None
    ) -> Pass:
        """Go back as ``pull`` does, with coefficients ``through`` (N, U) of the ReLUs' inputs given instead of lines.

        A ReLU with coefficient o that gets m for its input costs the largest value of o y - m x that it can have: at
        an end of its input's bounds or at the kink, where signs leave it. Every m gives a valid bound; the best is
        that of the linear relaxation, which lines alone need not reach. Float64 passes only.
        """
        count, given = a.shape
        work = a.new_zeros(count, self.columns)
        work[:, :given] = a
        size = work.abs() @ self.largest + offset.abs()
        if rounding_size is not None:
            size = size + rounding_size
        for layer in reversed(self.layers):
            if layer.at.start >= given:
                continue
            own, p, sign = work[:, layer.at], through[:, layer.own], signs[:, layer.own]
            ends = torch.where(sign > 0, 0.0, layer.lower), torch.where(sign < 0, 0.0, layer.upper)
            cost = torch.maximum(*(own * torch.maximum(layer.left * x, layer.right * x) - p * x for x in ends))
            offset = offset + (cost.clamp(min=0) - own.abs() * layer.bottom).sum(1)
            up = p.clamp(min=0)
            offset = offset + up @ layer.up_offset + (p - up) @ layer.low_offset
            size = size + (own.abs() + p.abs()) @ (2 * layer.largest) + p.abs() @ layer.size
            layer.up.add_back(work, up)
            layer.low.add_back(work, p - up)
        return Pass(work[:, : self.inputs], work[:, self.inputs :], through, offset, size, {})

    def corner(self, found: Pass) -> Tensor:
        """Return the input (N, n) where the bound is attained; in a ball, about."""
        if self.ball is not None:
            return ball_corner(found.a, self.ball)
        return torch.where(found.a > 0, self.upper_end, self.lower)

    def upper(self, found: Pass) -> Tensor:
        """Return the bounds (N,). In float64 they cover all roundings of the pass, many times over."""
        positive, offset = found.a.clamp(min=0), self.sound_offset(found)
        best = offset + positive @ self.upper_end + (found.a - positive) @ self.lower
        if self.ball is None:
            return best
        mode = Soundness.NONE if found.size is None else Soundness.DEPLOYED  # what it pays for is its own sums
        with torch.no_grad():
            own = ball_maximum(found.a.unsqueeze(1), self.ball, offset.unsqueeze(1), mode)
        return torch.fmin(best, own[:, 0].to(best))

    def sound_offset(self, found: Pass) -> Tensor:
        """Return the offsets (N,) plus the rounding error bound of the pass and of its maximum over the box."""
        return found.offset if found.size is None else self._paid(found.offset, found.size)

    def _paid(self, offset: Tensor, size: Tensor) -> Tensor:
        rate = several_sums(self.columns + 4 * len(self.layers) + 64, 16, self.dtype)
        return offset + (size * rate + tiny(self.dtype) * self.columns)

    def rounding(self, found: Pass) -> Tensor:
        """Return how much of the bounds (N,) is rounding error of the layers' rows; the outputs' own not counted."""
        parts = [0.5 * (layer.up_offset - layer.low_offset) for layer in self.layers]
        return found.through.abs() @ torch.cat(parts) if parts else torch.zeros_like(found.offset)

    def along(self, found: Pass) -> tuple[Tensor, Tensor]:
        """Return the unstable ReLUs' inputs (N, U) and all columns (N, V) at the bound's maximiser, along its lines."""
        v = found.a.new_empty(len(found.a), self.columns)
        if self.ball is None:
            torch.where(found.a > 0, self.upper_end, self.lower, out=v[:, : self.inputs])
        else:
            v[:, : self.inputs] = self.corner(found)
        inside = torch.empty(found.own.shape, dtype=v.dtype)
        for number, layer in enumerate(self.layers):
            p, own = found.through[:, layer.own], found.own[:, layer.own]
            if layer.rough is not None and found.m is not None:
                signs, alphas = found.m.signs[:, layer.own], found.m.alphas[:, layer.own]
                z, at = layer.up.forward(v), v[:, layer.at]
                lines_along(z, own, signs, alphas, layer.rough, inside[:, layer.own], at)
                continue
            z = _applied(layer, v, p > 0)
            lines = found.lines[number]
            y = torch.where(own > 0, torch.addcmul(lines.top, lines.upper, z), lines.lower * z)
            inside[:, layer.own] = z
            v[:, layer.at] = y
        return inside, v

    def activated(self, inside: Tensor) -> Tensor:
        """Apply the activations themselves to inputs (N, U)."""
        parts = [torch.maximum(x.left * inside[:, x.own], x.right * inside[:, x.own]) for x in self.layers]
        return torch.cat(parts, 1) if parts else inside

    def values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run the network, up to rounding, at inputs (N, n): all columns (N, V), and the ReLUs' inputs (N, U)."""
        v = x.new_empty(len(x), self.columns)
        v[:, : self.inputs] = x
        inside = x.new_empty(len(x), self.unstable)
        for layer in self.layers:
            z = layer.up.forward(v) + layer.up_offset
            inside[:, layer.own] = z
            v[:, layer.at] = torch.maximum(layer.left * z, layer.right * z)
        return v, inside

    def ascend(self, rows: Tensor, inside: Tensor) -> Tensor:
        """Return the gradient (N, n) by the input of rows (N, V) of v, where the ReLUs' inputs are ``inside``."""
        work = rows.clone()
        for layer in reversed(self.layers):
            right, left = inside.new_tensor(layer.right), inside.new_tensor(layer.left)
            slope = torch.where(inside[:, layer.own] > 0, right, left)
            layer.up.add_back(work, work[:, layer.at] * slope)
        return work[:, : self.inputs]


@dataclass(frozen=True, eq=False)
class _Lines:
    """Slopes and intercepts of a layer's entries in sub-problems."""

    lower: Tensor  # (N, U)
    upper: Tensor  # (N, U) or (U,)
    top: Tensor  # (N, U) or (U,)
    pushes: Tensor | None  # (N, U): multiplier times sign; None: nothing is split

    @classmethod
    def of(cls, layer: _Layer, m: Multipliers, *, sound: bool) -> _Lines:
        signs, alphas = m.signs[:, layer.own], m.alphas[:, layer.own]
        if sound:  # wherever slopes come from
            alphas = alphas.clamp(layer.left, layer.right)
        if not bool(signs.any()):
            return cls(alphas, layer.chord, layer.top, None)
        free = signs == 0
        side = torch.where(signs > 0, alphas.new_tensor(layer.right), alphas.new_tensor(layer.left))
        # Wherever the multipliers come from: a negative one would prove anything.
        pushes = m.betas[:, layer.own].clamp(min=0) * signs
        lower, upper = torch.where(free, alphas, side), torch.where(free, layer.chord, side)
        return cls(lower, upper, torch.where(free, layer.top, -layer.bottom), pushes)


def _prepared(layer: Layer, first: int, inputs: int, largest: Tensor, dtype: torch.dtype) -> _Layer:
    rows = layer.rows
    up, low = (matrix.to(dtype) for matrix in rows.matrices)
    low = up if rows.low is rows.up else low
    size = up.sizes(largest[: up.width])
    if low is not up:
        size = torch.maximum(size, low.sizes(largest[: low.width]))
    up_offset, low_offset = rows.up_offset.to(dtype), rows.low_offset.to(dtype)
    chord, top, bottom = (v.to(dtype) for v in (layer.chord, layer.top, layer.bottom))
    rough = None
    if dtype != torch.float64 and low is up:
        rough = UnitLines(chord, top, bottom, 0.5 * (up_offset + low_offset), *layer.sides)
    return _Layer(
        at=slice(first, first + len(layer)),
        own=slice(first - inputs, first - inputs + len(layer)),
        up=up,
        low=low,
        up_offset=up_offset,
        low_offset=low_offset,
        rough=rough,
        chord=chord,
        top=top,
        bottom=bottom,
        lower=layer.lower.to(dtype),
        upper=layer.upper.to(dtype),
        left=layer.sides[0],
        right=layer.sides[1],
        rounds=bool((layer.bottom != 0).any()),
        size=slightly_up(size + torch.maximum(up_offset.abs(), low_offset.abs())),
        largest=torch.maximum(layer.lower.abs(), layer.upper.abs()).to(dtype),
    )


def _in(rows: Rows, dtype: torch.dtype) -> Rows:
    up = rows.up.to(dtype)
    low = up if rows.low is rows.up else rows.low.to(dtype)
    return Rows(up, low, rows.up_offset.to(dtype), rows.low_offset.to(dtype))


def _spread(values: list[tuple[_Layer, float]], like: Tensor) -> Tensor:
    parts = [like.new_full((len(layer.chord),), value) for layer, value in values]
    return torch.cat(parts) if parts else like[:0]


def _applied(layer: _Layer, v: Tensor, upwards: Tensor) -> Tensor:
    """Evaluate the layer's rows at v: (N, U); their upper bounds where ``upwards``, their lower ones elsewhere."""
    z = layer.up.forward(v)
    if layer.low is not layer.up:
        z = torch.where(upwards, z, layer.low.forward(v))
    return z + torch.where(upwards, layer.up_offset, layer.low_offset)


def bounds_of_rows(reduced: Reduced) -> Interval:
    """Bound the reduced network's outputs (R,) soundly, with adaptive slopes."""
    passes = Passes(reduced, torch.float64)
    rows = passes.outputs
    a, offset = torch.cat([rows.up, -rows.low]), torch.cat([rows.up_offset, -rows.low_offset])
    found = passes.upper(_root(reduced, passes, a, offset))
    upper = round_up(nothing_known(found), reduced.lower.dtype)
    return Interval(-upper[len(rows) :], upper[: len(rows)])


def rounding_of_rows(reduced: Reduced) -> tuple[Tensor, Tensor]:
    """Bound the reduced network's outputs from above (R,), and return what rows paid of it for rounding."""
    passes = Passes(reduced, torch.float64)
    rows = passes.outputs
    found = _root(reduced, passes, rows.up, rows.up_offset)
    inside = [_paid(layer) for layer in passes.layers]
    paid = found.through.abs() @ torch.cat(inside) if inside else torch.zeros_like(found.offset)
    return passes.upper(found), paid + _paid(rows)


def _paid(rows: Rows | _Layer) -> Tensor:
    """Return what rows (R,) pay for rounding; 0 where something between is not affine: offsets do not tell it apart."""
    paid = 0.5 * (rows.up_offset - rows.low_offset)
    return paid if rows.low is rows.up else torch.zeros_like(paid)


def _root(reduced: Reduced, passes: Passes, a: Tensor, offset: Tensor) -> Pass:
    """Go back from a (N, V), offset (N,) with adaptive slopes and no multipliers."""
    slopes = [layer.slope for layer in reduced.layers]
    alphas = torch.cat(slopes).double() if slopes else a.new_zeros(0)
    alphas = alphas.expand(len(a), -1)
    plain = Multipliers(reduced.signs.expand(len(a), -1), alphas, torch.zeros_like(alphas))
    return passes.pull(a, offset, plain)
