"""x / y by lines: a product with 1 / y, which itself lies between a chord and a tangent."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import FEW_ROUNDINGS, FUNCTION_ERROR, Soundness
from surebound.rules.registry import Context
from surebound.rules.relax.lines import Lines, lines
from surebound.rules.relax.pairs import Operand, joint_shape, own_rounding


def quotient_lines(ctx: Context, x: Operand, y: Operand) -> Lines | None:
    """Relax x / y with y of one sign: McCormick's planes of x and 1 / y, and lines of 1 / y in y."""
    if not isinstance(y, Interval):
        return None  # affine in x
    inverse = _Inverse(y)
    numbers = (x.lower, x.upper) if isinstance(x, Interval) else (torch.as_tensor(x, dtype=y.dtype),) * 2
    shape = joint_shape(numbers[0], y)
    x_low, x_high = (v.to(y.dtype).expand(shape).double() for v in numbers)
    r_low, r_high = (v.expand(shape) for v in (inverse.low, inverse.high))
    varies = isinstance(x, Interval)
    below = _plane(inverse, x_low, r_low if varies else torch.zeros_like(r_low), shape, lower=True)
    above = _plane(inverse, x_low, r_high if varies else torch.zeros_like(r_low), shape, lower=False)
    size = torch.maximum(x_low.abs(), x_high.abs()) * torch.maximum(r_low.abs(), r_high.abs())
    error = own_rounding(ctx, size, y.dtype, 1) + FUNCTION_ERROR * size
    operands, slopes_below, slopes_above = [y], [below[1]], [above[1]]
    if isinstance(x, Interval):
        operands, slopes_below, slopes_above = [x, y], [below[0], below[1]], [above[0], above[1]]
    cost = [_narrow(s, operands, shape) for s in (slopes_below, slopes_above)]
    dtype = torch.float64 if ctx.soundness is not Soundness.NONE else y.dtype
    return lines(
        ctx,
        operands,
        [s.to(y.dtype) for s in slopes_below],
        (below[2] - error - cost[0]).to(dtype),
        [s.to(y.dtype) for s in slopes_above],
        (above[2] + error + cost[1]).to(dtype),
    )


class _Inverse:
    """1 / y over [low, high] of one sign, in float64: its ends, chord and tangent at the middle."""

    def __init__(self, y: Interval) -> None:
        a, b = y.lower.double(), y.upper.double()
        self.low, self.high = (
            (1 / b) * (1 - FEW_ROUNDINGS * b.sign()),
            (1 / a) * (1 + FEW_ROUNDINGS * a.sign()),
        )
        middle = (a + b) / 2
        chord, tangent = -1 / (a * b), -1 / (middle * middle)
        at_chord, at_tangent = 1 / a - chord * a, 2 / middle
        positive = a > 0  # convex: the tangent is below, the chord above; the other way round for negative y
        steepest = torch.maximum((1 / a).abs(), (1 / b).abs()) * torch.maximum((b / a).abs(), (a / b).abs())
        slack = FUNCTION_ERROR * steepest
        self.below = (
            torch.where(positive, tangent, chord),
            torch.where(positive, at_tangent, at_chord) - slack,
        )
        self.above = (
            torch.where(positive, chord, tangent),
            torch.where(positive, at_chord, at_tangent) + slack,
        )


def _plane(r: _Inverse, x_at: Tensor, r_at: Tensor, shape: torch.Size, *, lower: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return slopes in x and y and the intercept of r_at x + x_at r - x_at r_at with r replaced by its line.

    For a constant x, r_at = 0 leaves x_at r.
    """
    below, above = (tuple(v.expand(shape) for v in line) for line in (r.below, r.above))
    use_below = (x_at >= 0) if lower else (x_at < 0)
    slope = torch.where(use_below, below[0], above[0])
    level = torch.where(use_below, below[1], above[1])
    return r_at, x_at * slope, x_at * level - x_at * r_at


def _narrow(slopes: list[Tensor], operands: list[Interval], shape: torch.Size) -> Tensor:
    """Bound the cost of rounding the slopes to the network's dtype, and of float64's own rounding of them."""
    total = torch.zeros(shape, dtype=torch.float64, device=slopes[0].device)
    for slope, x in zip(slopes, operands, strict=True):
        lost = (slope - slope.to(x.dtype).double()).abs() + FUNCTION_ERROR * slope.abs()
        total = total + lost * x.magnitude.double()
    return total
