"""Elementwise passes over the ends of bounds: balls, ReLUs and their lines, the tighter of two bounds."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from surebound.kernels.build import Entry
from surebound.kernels.kernel import Declined, is_float32, kernel
from surebound.numerics import per_example, step_towards

#: From so many numbers on it is worth looking for a compiler; for a ReLU of bounds, in the cheapest of passes.
WORTH, RELU_WORTH = 1 << 12, 1 << 15


class Payment(NamedTuple):
    """Rounding error bounds of a relaxation between bounds, to be added to its intercept."""

    least: float  # widths below it are replaced by it
    factor: float  # the intercept times this, plus ``extra``
    extra: float
    under: float  # absolutely, relative to 1 + the largest |bound| of an example


Hinge = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _hinge(
    lower: Tensor, upper: Tensor, left: float, right: float, pay: Payment | None, rounded: bool = False
) -> Hinge:
    low, high = lower.clamp(max=0), upper.clamp(min=0)
    top_left = high if (left, right) == (0.0, 1.0) else right * high - left * low
    width = high - low
    if pay is None:
        chord = top_left / torch.where(width == 0, torch.ones_like(width), width)
    else:  # a width below the normal numbers, or an infinite one, gives a slope that is as good as any other
        chord = (top_left / width.clamp(min=pay.least)).nan_to_num_(right).clamp_(left, right)
    if rounded:
        chord = torch.where(high == 0, left, torch.where(low == 0, right, chord))
    # Of two Python numbers torch.where makes float32 ones, which are other slopes for a float64 network.
    below = torch.where(high + low > 0, chord.new_tensor(right), chord.new_tensor(left))
    free = (low < 0) & (high > 0)
    absolute = torch.zeros(lower.shape[0], dtype=torch.float64, device=lower.device)
    if pay is None:
        return chord, below, (left - chord) * low, free, absolute
    top = _intercept(chord, low, high, left, right) * pay.factor + pay.extra
    if lower.numel():
        absolute = pay.under * (1 + per_example(torch.maximum(upper, -lower)).double())
    return chord, below, top, free, absolute


def _intercept(s: Tensor, low: Tensor, high: Tensor, left: float, right: float) -> Tensor:
    """Return the least t with s low + t >= left low and s high + t >= right high, but for two roundings; (B, ...)."""
    at_low, at_high = (left - s) * low, (right - s) * high
    if bool((at_low + at_high).isfinite().all()):
        return torch.maximum(at_low, at_high)
    # 0 times infinity is 0 here: a side that the line meets. NaN stays NaN.
    at_low = torch.where(s == left, torch.zeros_like(s), at_low)
    return torch.maximum(at_low, torch.where(s == right, torch.zeros_like(s), at_high))


def _is_relu(
    lower: Tensor, upper: Tensor, left: float, right: float, pay: Payment | None, rounded: bool = False
) -> bool:
    return (left, right, rounded) == (0.0, 1.0, False) and lower.dim() > 1


@kernel(reference=_hinge, alike="lower upper", fits=_is_relu, worth=WORTH)
def hinge(
    run: Entry,
    lower: Tensor,
    upper: Tensor,
    left: float,
    right: float,
    pay: Payment | None,
    rounded: bool = False,
) -> Hinge:
    """Relax max(left x, right x), left < right, between bounds (B, *value): a chord above, a line through 0 below.

    Returns slope of the chord, adaptive slope below, intercept of the chord, where the sign is open, and the absolute
    payment (B,) in float64. ``pay``: None without rounding control, where the chord's own intercept is enough.
    ``rounded``: sides that are not 0 or +-1, which stable entries are to have exactly.
    """
    chord, below, top = (torch.empty_like(lower) for _ in range(3))
    free = torch.empty_like(lower, dtype=torch.bool)
    absolute = lower.new_empty(lower.shape[0], dtype=torch.float64)
    sizes = lower.shape[0], lower[0].numel()
    given = (*sizes, pay is not None, *(pay or Payment(0.0, 1.0, 0.0, 0.0)))
    if run(lower, upper, *given, chord, below, top, free, absolute):  # some number is not finite
        raise Declined
    return chord, below, top, free, absolute


def _chord_backward(lower: Tensor, upper: Tensor, g_slope: Tensor, g_top: Tensor) -> tuple[Tensor, Tensor]:
    unstable = (lower < 0) & (upper > 0)
    inverse = torch.where(unstable, upper - lower, 1.0).reciprocal_()
    slope, rest, per = upper * inverse, lower * inverse, g_slope * inverse
    g_lower = torch.addcmul(per * slope, g_top, slope.square(), value=-1.0)
    g_upper = torch.addcmul(-per * rest, g_top, rest.square())
    return torch.where(unstable, g_lower, 0.0), torch.where(unstable, g_upper, 0.0)


def _two_fit(lower: Tensor, upper: Tensor, first: Tensor, second: Tensor) -> bool:
    return is_float32(first, second) and first.shape == second.shape == lower.shape


@kernel(reference=_chord_backward, alike="lower upper", fits=_two_fit)
def chord_backward(run: Entry, lower: Tensor, upper: Tensor, g_slope: Tensor, g_top: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the ends from those of slope and intercept of a ReLU's chord (``hinge``).

    Where l < 0 < u: s = u / (u - l), t = -s l, so ds/du = -l / (u - l)^2, ds/dl = u / (u - l)^2,
    dt/du = (l / (u - l))^2 and dt/dl = -s^2. Elsewhere both are constant.
    """
    g_lower, g_upper = torch.empty_like(lower), torch.empty_like(lower)
    given = as_laid_out(g_slope, lower), as_laid_out(g_top, lower)
    run(lower, upper, *given, lower.numel(), g_lower, g_upper)
    return g_lower, g_upper


def _within(lower: Tensor, upper: Tensor, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    return torch.fmax(lower, center - radius), torch.fmin(upper, center + radius)


@kernel(reference=_within, alike="lower upper", fits=_two_fit)
def within(run: Entry, lower: Tensor, upper: Tensor, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tighter of known ends and centre -+ radius; what is not a number says nothing."""
    low, high = torch.empty_like(lower), torch.empty_like(lower)
    run(lower, upper, as_laid_out(center, lower), as_laid_out(radius, lower), lower.numel(), low, high)
    return low, high


Gradients = tuple[Tensor | None, Tensor | None, Tensor, Tensor]


def _within_backward(
    lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, g_low: Tensor, g_high: Tensor
) -> Gradients:
    own_low, own_high = torch.where(low != lower, g_low, 0.0), torch.where(high != upper, g_high, 0.0)
    return g_low - own_low, g_high - own_high, own_low + own_high, own_high - own_low


@kernel(
    reference=_within_backward,
    alike="lower upper low high",
    fits=lambda lower, upper, low, high, g_low, g_high: _two_fit(lower, upper, g_low, g_high),
)
def within_backward(
    run: Entry, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, g_low: Tensor, g_high: Tensor
) -> Gradients:
    """Return the gradients of known ends (None: all 0), centre and radius of ``within`` from those of low and high."""
    found = [torch.empty_like(lower) for _ in range(4)]
    g = as_laid_out(g_low, lower), as_laid_out(g_high, lower)
    some = run(lower, upper, low, high, *g, lower.numel(), *found)
    return (found[0] if some else None), (found[1] if some else None), found[2], found[3]


def _ball(x: Tensor, radius: float, least: float, most: float) -> tuple[Tensor, Tensor]:
    lower, upper = add_outwards(x, -radius), add_outwards(x, radius)
    if (least, most) != (-math.inf, math.inf):
        lower, upper = lower.clamp_(least, most), upper.clamp_(least, most)
    return lower, upper


def add_outwards(x: Tensor, radius: float) -> Tensor:
    """Return x + radius, rounded away from x where it has to be rounded at all."""
    total = x + radius
    if total.requires_grad:
        return total + (add_outwards(x.detach(), radius) - total.detach())  # both sums are exact
    # The exact error of that sum (Knuth's two-sum) says where it was rounded towards x.
    back = total - x
    error = total - back
    error = torch.sub(x, error, out=error).sub_(back.sub_(radius))
    inwards = error.gt_(0) if radius > 0 else error.lt_(0)  # 1 or 0
    goal = inwards.mul_(math.copysign(torch.finfo(x.dtype).max, radius)).add_(total)
    return step_towards(total, goal)


@kernel(reference=_ball, alike="x", worth=WORTH)
def ball(run: Entry, x: Tensor, radius: float, least: float, most: float) -> tuple[Tensor, Tensor]:
    """Return the ends of [x - radius, x + radius], radius > 0, rounded outwards if at all, within [least, most]."""
    low, high = torch.empty_like(x), torch.empty_like(x)
    run(x, x.numel(), radius, least, most, low, high)
    return low, high


def _relu_of_bounds(center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    upper = center.add_(radius)
    lower = torch.sub(upper, radius, alpha=2, out=radius)
    width = upper.relu_().sub_(lower.relu_())
    return lower.add_(width, alpha=0.5), width


@kernel(reference=_relu_of_bounds, alike="center radius", worth=RELU_WORTH)
def relu_of_bounds(run: Entry, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Return max(x, 0) of [center - radius, center + radius]: new centre and new *width*, in their memory."""
    run(center, radius, center.numel())
    return center, radius


def as_laid_out(value: Tensor, like: Tensor) -> Tensor:
    """Return the same numbers in the memory order of another tensor of that shape."""
    return value if value.stride() == like.stride() else torch.empty_like(like).copy_(value)
