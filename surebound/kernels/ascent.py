"""Steps of the ascent in the multipliers of a reduced network's sub-problems (bounds/reduced/descent.py).

Elementwise passes over arrays of a number for every sub-problem and unit are most of a step once rows are sparse: each
is one pass here that reads and writes what it needs once. Sums have other roundings than PyTorch's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.kernels.build import Entry
from surebound.kernels.kernel import is_float32, kernel

#: From so many numbers on a pass is compiled.
WORTH = 1 << 8


@dataclass(frozen=True, eq=False)
class UnitLines:
    """The lines of U units y = max(left x, right x): chord x + top above, and through 0 below, less -bottom."""

    chord: Tensor  # (U,)
    top: Tensor
    bottom: Tensor
    middle: Tensor  # what their rows add
    left: float
    right: float


def _sided(signs: Tensor, lines: UnitLines, free: Tensor, split: Tensor | None = None) -> Tensor:
    """Return ``free`` where there is no sign; the side's slope, or ``split``, elsewhere: (N, U)."""
    if split is None:
        split = torch.where(signs > 0, free.new_tensor(lines.right), free.new_tensor(lines.left))
    return torch.where(signs == 0, free, split)


def _lines_back(
    own: Tensor, signs: Tensor, alphas: Tensor, betas: Tensor, lines: UnitLines, p: Tensor, offset: Tensor
) -> None:
    positive = own.clamp(min=0)
    negative = own - positive
    above, below = _sided(signs, lines, lines.chord), _sided(signs, lines, alphas)
    p.copy_(positive * above + negative * below + betas.clamp(min=0) * signs)
    top = _sided(signs, lines, lines.top, -lines.bottom)
    offset.add_((positive * top).sum(1) + p @ lines.middle + negative @ lines.bottom)


def _rows_lie(*values: Tensor) -> bool:
    """Are the rows of these (N, U) without gaps?"""
    return is_float32(*values) and all(v.stride(1) == 1 for v in values)


def _lie(signs: Tensor, lines: UnitLines) -> bool:
    ends = lines.chord, lines.top, lines.bottom, lines.middle
    return signs.is_cpu and signs.stride(1) == 1 and is_float32(*ends) and all(v.is_contiguous() for v in ends)


def _back_fits(
    own: Tensor, signs: Tensor, alphas: Tensor, betas: Tensor, lines: UnitLines, p: Tensor, offset: Tensor
) -> bool:
    return own.numel() >= WORTH and _rows_lie(own, alphas, betas, p) and _lie(signs, lines) and is_float32(offset)


@kernel(reference=_lines_back, fits=_back_fits)
def lines_back(
    run: Entry,
    own: Tensor,
    signs: Tensor,
    alphas: Tensor,
    betas: Tensor,
    lines: UnitLines,
    p: Tensor,
    offset: Tensor,
) -> None:
    """Write coefficients p (N, U) of the inputs of units whose own are ``own`` (N, U); add their lines to the offsets.

    signs int8, slopes and multipliers of signs (N, U); offset (N,).
    """
    ends = lines.chord, lines.top, lines.bottom, lines.middle, lines.left, lines.right
    placed = (v for part in (own, signs, alphas, betas) for v in (part, part.stride(0)))
    run(*placed, *ends, *own.shape, p, p.stride(0), offset)


def _lines_along(
    z: Tensor, own: Tensor, signs: Tensor, alphas: Tensor, lines: UnitLines, inside: Tensor, y: Tensor
) -> None:
    inside.copy_(z + lines.middle)
    above, below = _sided(signs, lines, lines.chord), _sided(signs, lines, alphas)
    top = _sided(signs, lines, lines.top, -lines.bottom)
    y.copy_(torch.where(own > 0, torch.addcmul(top, above, inside), below * inside))


def _along_fits(
    z: Tensor, own: Tensor, signs: Tensor, alphas: Tensor, lines: UnitLines, inside: Tensor, y: Tensor
) -> bool:
    return own.numel() >= WORTH and _rows_lie(z, own, alphas, inside, y) and _lie(signs, lines)


@kernel(reference=_lines_along, fits=_along_fits)
def lines_along(
    run: Entry, z: Tensor, own: Tensor, signs: Tensor, alphas: Tensor, lines: UnitLines, inside: Tensor, y: Tensor
) -> None:
    """Write the units' inputs, z + middle, and outputs y (N, U) along the lines that ``lines_back`` has gone."""
    ends = lines.chord, lines.top, lines.bottom, lines.middle, lines.left, lines.right
    placed = (v for part in (z, own, signs, alphas) for v in (part, part.stride(0)))
    run(*placed, *ends, *own.shape, inside, inside.stride(0), y, y.stride(0))


@dataclass(frozen=True, eq=False)
class AscentState:
    """What a step of the ascent moves, (N, U) each, in place.

    mean, square: of derivatives by the slope of a free unit or the multiplier of a split one. inputs, outputs: averages
    of the units' at the maximisers so far.
    """

    alphas: Tensor
    betas: Tensor
    mean: Tensor
    square: Tensor
    inputs: Tensor
    outputs: Tensor

    def __getitem__(self, index: Tensor) -> AscentState:
        parts = self.alphas, self.betas, self.mean, self.square, self.inputs, self.outputs
        return AscentState(*(part[index] for part in parts))


@dataclass(frozen=True)
class StepSizes:
    """How far a step goes: of the averages, of slopes, of multipliers."""

    weight: float
    alpha: float
    beta: float


def _ascend(
    now: AscentState,
    own: Tensor,
    inside: Tensor,
    outside: Tensor,
    signs: Tensor,
    unit: Tensor,
    range_: tuple[Tensor, Tensor],
    rates: StepSizes,
) -> None:
    now.inputs.lerp_(inside, rates.weight)
    now.outputs.lerp_(outside, rates.weight)
    gradient = torch.where(signs == 0, own.clamp(max=0) * inside, inside * signs)
    now.mean.lerp_(gradient, 0.1)
    now.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    move = now.mean / now.square.sqrt().add_(1e-12)  # heuristic: Adam's
    split = signs != 0
    now.betas.sub_(torch.where(split, rates.beta * unit * move, 0.0)).clamp_(min=0)
    now.alphas.sub_(torch.where(split, 0.0, rates.alpha * move)).clamp_(*range_)


def _ascend_fits(
    now: AscentState,
    own: Tensor,
    inside: Tensor,
    outside: Tensor,
    signs: Tensor,
    unit: Tensor,
    range_: tuple[Tensor, Tensor],
    rates: StepSizes,
) -> bool:
    whole = now.alphas, now.betas, now.mean, now.square, now.inputs, now.outputs, inside, unit, *range_
    plain = is_float32(*whole) and all(v.is_contiguous() for v in (*whole, signs))
    return plain and own.numel() >= WORTH and _rows_lie(own, outside)


@kernel(reference=_ascend, fits=_ascend_fits)
def ascend(
    run: Entry,
    now: AscentState,
    own: Tensor,
    inside: Tensor,
    outside: Tensor,
    signs: Tensor,
    unit: Tensor,
    range_: tuple[Tensor, Tensor],
    rates: StepSizes,
) -> None:
    """Take a step of Adam in place, from coefficients ``own`` and what goes into units and out at the maximisers.

    unit (N, U): how large multipliers are; range_: the smallest and the largest slopes (U,).
    """
    shares = rates.weight, rates.alpha, rates.beta
    at = own, own.stride(0), inside, outside, outside.stride(0), signs, unit
    run(*at, *range_, *shares, *own.shape, now.alphas, now.betas, now.mean, now.square, now.inputs, now.outputs)
