"""softmax between planes of its arguments, and its sum, which is 1.

With d_j = x_j - x_i an entry is p_i = 1 / s, s = sum_j exp(d_j), d_i = 0 (Wei et al. 2023). From below, for any g < 0,

    1 / s >= g s + 2 sqrt(-g),    exp(d_j) <= its chord:    a plane.

From above log p_i = -log s = min over weights w >= 0 with sum 1 of sum_j w_j (log w_j - d_j), and exp lies below its
chord. Both hold for any slopes: these are rounded first, intercepts computed from them. Coefficients a of one softmax
are shifted by a number c of the pass's choice, because sum_i a_i p_i = c + sum_i (a_i - c) p_i.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import (
    FEW_ROUNDINGS,
    FUNCTION_ERROR,
    Soundness,
    abs_dot,
    dot,
    dot_rounding,
    gamma,
    per_example,
    round_down,
    round_up,
    several_sums,
    slightly_up,
    tiny,
    unit_roundoff,
)
from surebound.rules.registry import Context
from surebound.rules.relax.lines import Index, Pulled

#: Slopes of all pairs of entries are kept in memory: more entries than this keep interval bounds.
MOST = 1 << 23

#: Differences of arguments beyond this: interval bounds, before anything overflows.
_FAR = 300.0


@dataclass(frozen=True)
class SoftmaxPlanes:
    """below x + bottom <= p <= above x + top for each softmax of K entries, the axis of the softmax last."""

    dim: int  # of the softmax, counted from the end
    below: Tensor  # (B, ..., K, K), one row of slopes for each entry of p
    above: Tensor
    bottom: Tensor  # (B, ..., K), float64
    top: Tensor
    width: Tensor  # (B, ..., K): how far the planes of an entry are apart in the middle
    beside: Tensor  # (B, ..., 1), float64: how far the sum of the computed entries may be from 1
    absolute: Tensor  # (B,), float64: underflow

    owes = 0.0
    loose = True

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        a = a.movedim(self.dim, -1)
        shift = _weighted_median(a, self.width)  # (S, B, ..., 1)
        a = a - shift
        positive = a.clamp(min=0)
        negative = a - positive
        back = _product(positive, self.above) + _product(negative, self.below)
        ones = torch.ones_like(self.beside)
        paid = self.beside + several_sums(math.prod(a.shape[2:]) + 8, 2)
        offset = dot(positive.double(), self.top) + dot(negative.double(), self.bottom) + self.absolute
        offset = offset + dot(shift.double(), ones) + abs_dot(shift.double(), paid)
        return Pulled((back.movedim(-1, self.dim),), offset)

    def select(self, index: Index) -> SoftmaxPlanes:
        names = ("below", "above", "bottom", "top", "width", "beside", "absolute")
        return dataclasses.replace(self, **{name: getattr(self, name)[index] for name in names})


def _product(a: Tensor, slopes: Tensor) -> Tensor:
    """Multiply rows (S, B, ..., K) with matrices (B, ..., K, K)."""
    return (a.movedim(0, -2) @ slopes).movedim(-2, 0)


def _weighted_median(a: Tensor, weight: Tensor) -> Tensor:
    """Return the entry of the last axis that is least far from all others, these weighted: (..., 1)."""
    order = a.detach().argsort(-1)
    total = weight.expand(a.shape).gather(-1, order).cumsum(-1)
    place = (total < total[..., -1:] / 2).sum(-1, keepdim=True).clamp(max=a.shape[-1] - 1)
    return a.gather(-1, order.gather(-1, place))


@dataclass(frozen=True)
class _Planes:
    """One plane for each entry, as slopes in the d_j (B, ..., K, K), 0 for d_i; intercepts (B, ..., K) in float64."""

    slopes: Tensor
    intercepts: Tensor


def softmax_planes(ctx: Context, x: Interval, out: Interval, dim: int, ulps: float) -> SoftmaxPlanes | None:
    """Relax softmax over an axis; ``out``: its bounds; ``ulps``: the relative error of an implementation, in eps."""
    dim, count = dim % x.lower.dim() - x.lower.dim(), int(x.shape[dim])
    if dim == -x.lower.dim() or x.lower.numel() * count > MOST * x.shape[0]:
        return None
    ends = x.select(lambda v: v.movedim(dim, -1))
    low, high = (end.double() for end in (ends.lower, ends.upper))
    bounds = out.select(lambda v: v.movedim(dim, -1).double())
    gone = high == -math.inf  # masked: exp is 0 whatever the others are, and so is every slope
    low, high, size = (v.masked_fill(gone, 0.0) for v in (low, high, ends.magnitude.double()))
    apart = (1 - torch.eye(count, dtype=torch.float64, device=low.device)) * (~gone).unsqueeze(-2)
    slack = FEW_ROUNDINGS * (size.unsqueeze(-2) + size.unsqueeze(-1))
    least = ((low.unsqueeze(-2) - high.unsqueeze(-1) - slack) * apart).clamp(-_FAR, _FAR)  # d_j of entry i: (..., i, j)
    most = ((high.unsqueeze(-2) - low.unsqueeze(-1) + slack) * apart).clamp(-_FAR, _FAR)
    near = torch.maximum(most.amax(-1), -least.amin(-1)) < _FAR
    near = near & ~gone
    lost = _implementation(ctx, bounds.upper, x.dtype, count, ulps)
    middle = low / 2 + high / 2
    sides = []
    for sign, planes, flat in (
        (1.0, _below(least, most, apart, x.dtype), bounds.lower),
        (-1.0, _above(least, most, apart, x.dtype), bounds.upper),
    ):
        slopes, intercepts = _in_arguments(planes, size, x.dtype, sign)
        intercepts = intercepts - sign * lost
        at = (slopes.double() @ middle.unsqueeze(-1)).squeeze(-1) + intercepts
        use = near & slopes.isfinite().all(-1) & (sign * at >= sign * flat)  # False for NaN
        slopes = torch.where(use.unsqueeze(-1), slopes, torch.zeros_like(slopes))
        intercepts, at = torch.where(use, intercepts, flat), torch.where(use, at, flat)
        sides.append((slopes, _paying(ctx, intercepts, slopes, size, bounds.upper, x.dtype, sign), at))
    (below, bottom, under), (above, top, over) = sides
    absolute = torch.zeros(x.shape[0], dtype=torch.float64, device=low.device)
    if ctx.soundness is not Soundness.NONE:
        absolute = 64.0 * count * math.prod(x.shape[1:]) * tiny(x.dtype) * (1 + per_example(size))
    width = (over - under).clamp(min=0).nan_to_num(1.0, 1.0, 1.0).to(x.dtype)
    beside = slightly_up(lost.sum(-1, keepdim=True)).nan_to_num(math.inf, math.inf)
    return SoftmaxPlanes(dim, below, above, bottom, top, width, beside, absolute)


def _implementation(ctx: Context, upper: Tensor, dtype: torch.dtype, count: int, ulps: float) -> Tensor:
    """Bound how far computed entries may be from exact ones: 0 over the reals."""
    if ctx.soundness is not Soundness.DEPLOYED:
        return torch.zeros_like(upper)
    return slightly_up(2 * unit_roundoff(dtype) * ulps * upper + (4.0 * count + 4) * tiny(dtype))


def _below(least: Tensor, most: Tensor, apart: Tensor, dtype: torch.dtype) -> _Planes:
    """Return planes below 1 / s: its tangent where the chords' sum is in the middle, in terms of the chords."""
    at_least, at_most = least.exp() * apart, most.exp() * apart
    chord = _slope(least, most, at_least, at_most) * apart
    middle = 1 + ((at_least + at_most) / 2).sum(-1, keepdim=True)
    g = -1 / (middle * middle)
    slopes = (g * chord).to(dtype)
    used = slopes.double() / g  # the chords' slopes as they are rounded
    above = torch.maximum(at_least - used * least, at_most - used * most) * apart
    sizes = (at_least + at_most + used.abs() * torch.maximum(least.abs(), most.abs())) * apart
    root, g = (-g).sqrt().squeeze(-1), g.squeeze(-1)
    lost = FUNCTION_ERROR * (2 * root - g * (1 + sizes.sum(-1)))
    return _Planes(slopes, 2 * root + g * (1 + above.sum(-1)) - lost)


def _above(least: Tensor, most: Tensor, apart: Tensor, dtype: torch.dtype) -> _Planes:
    """Return planes above exp(-log s): the chord of exp, of -log s with the weights of the middle."""
    high, low = (-torch.log(1 + (end.exp() * apart).sum(-1)) for end in (least, most))  # of log p
    slope = _slope(low, high, low.exp(), high.exp())
    chord = torch.maximum(low.exp() - slope * low, high.exp() - slope * high)
    middle = (least / 2 + most / 2).exp() * apart
    weights = middle / (1 + middle.sum(-1, keepdim=True))
    slopes = _towards_zero(-slope.unsqueeze(-1) * weights, dtype)
    weights = -slopes.double() / slope.unsqueeze(-1) * apart
    own = 1 - weights.sum(-1)
    own = torch.where(own > FUNCTION_ERROR, own, torch.nan)  # too little to tell from 0: no plane
    entropy = torch.xlogy(weights, weights).sum(-1) + torch.xlogy(own, own)
    lost = FUNCTION_ERROR * (1 + slope * (1 + low.abs() + entropy.abs()))
    lost = lost + slope * several_sums(weights.shape[-1] + 8, 64)  # of ``own``, times its logarithm, which is below 64
    return _Planes(slopes, chord + slope * entropy + lost)


def _slope(low: Tensor, high: Tensor, at_low: Tensor, at_high: Tensor) -> Tensor:
    """Return the slope of exp's chord, or about that where the ends are too close to divide."""
    width = high - low
    wide = width > 1e-6  # heuristic: any slope gives a line
    return torch.where(wide, (at_high - at_low) / torch.where(wide, width, torch.ones_like(width)), at_high)


def _towards_zero(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to a dtype without growing in size."""
    return torch.where(value < 0, round_up(value, dtype), round_down(value, dtype))


def _in_arguments(planes: _Planes, size: Tensor, dtype: torch.dtype, sign: float) -> tuple[Tensor, Tensor]:
    """Return slopes in the x_j and intercepts: d_j = x_j - x_i gives x_i minus the sum of the others' slopes."""
    total = planes.slopes.double().sum(-1)
    own = (-total).to(dtype)
    # The rounding of that sum, in float64 and to the dtype, is paid here.
    lost = ((total + own.double()).abs() + FUNCTION_ERROR * planes.slopes.double().abs().sum(-1)) * size
    return planes.slopes + torch.diag_embed(own), planes.intercepts - sign * slightly_up(lost)


def _paying(
    ctx: Context, intercepts: Tensor, slopes: Tensor, size: Tensor, upper: Tensor, dtype: torch.dtype, sign: float
) -> Tensor:
    """Move intercepts outwards by the rounding of coefficients: of their shift, and of their products with slopes."""
    if ctx.soundness is Soundness.NONE:
        return intercepts
    count = slopes.shape[-1]
    products = (slopes.double().abs() @ size.unsqueeze(-1)).squeeze(-1) * gamma(2 * count + 4, dtype)
    shifts = 2 * unit_roundoff(dtype) * upper
    sums = (2 * dot_rounding(intercepts.shape, torch.float64) + FEW_ROUNDINGS) * intercepts.abs()
    return intercepts - sign * slightly_up(products + shifts + sums)
