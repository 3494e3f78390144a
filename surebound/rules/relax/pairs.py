"""Operators on two tensors of which one or both vary: sums, products (McCormick 1976), quotients, extremes, choices."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import FEW_ROUNDINGS, Soundness, tiny, unit_roundoff
from surebound.rules.registry import Context
from surebound.rules.relax.lines import Index, Lines, Pulled, Relaxation, Slope, lines

Operand = Interval | Tensor | float | int


def sum_lines(ctx: Context, x: Operand, y: Operand, alpha: float = 1) -> Lines | None:
    """Relax x + alpha y, both varying: affine, one or two roundings. Truth values have no lines."""
    if not (isinstance(x, Interval) and isinstance(y, Interval)) or torch.bool in (x.dtype, y.dtype):
        return None  # affine in one operand
    out = joint_shape(x, y)
    size = wide(ctx, x.magnitude) + abs(alpha) * wide(ctx, y.magnitude)
    error = own_rounding(ctx, size, x.dtype, 1 if alpha in (1, -1) else 2).expand(out)
    slopes: tuple[Slope, ...] = (1.0, float(alpha))
    return lines(ctx, (x, y), slopes, -error, slopes, error)


def difference_lines(ctx: Context, x: Operand, y: Operand, alpha: float = 1) -> Lines | None:
    """Relax x - alpha y."""
    return sum_lines(ctx, x, y, -alpha)


def reverse_difference_lines(ctx: Context, x: Operand, y: Operand, alpha: float = 1) -> Lines | None:
    """Relax y - alpha x; the operands stay in the order of the call."""
    if not (isinstance(x, Interval) and isinstance(y, Interval)):
        return None
    turned = sum_lines(ctx, y, x, -alpha)
    if turned is None:
        return None
    slopes = turned.lower[::-1]
    return dataclasses.replace(turned, shapes=turned.shapes[::-1], lower=slopes, upper=slopes)


def product_lines(ctx: Context, x: Operand, y: Operand) -> Lines | None:
    """Relax x y of two different tensors between two of McCormick's four planes. Truth values have no lines."""
    if not (isinstance(x, Interval) and isinstance(y, Interval)) or torch.bool in (x.dtype, y.dtype):
        return None
    shape = joint_shape(x, y)
    x_low, y_low, y_high = (v.expand(shape) for v in (x.lower, y.lower, y.upper))
    error = own_rounding(ctx, wide(ctx, x.magnitude) * wide(ctx, y.magnitude), x.dtype, 1)
    if ctx.soundness is not Soundness.NONE:  # operands that hardware may flush to zero
        error = error + 4 * tiny(x.dtype) * (1 + x.magnitude + y.magnitude).double()
    # x y >= y_low x + x_low y - x_low y_low, and x y <= y_high x + x_low y - x_low y_high.
    bottom = -wide(ctx, x_low) * wide(ctx, y_low) - error
    top = -wide(ctx, x_low) * wide(ctx, y_high) + error
    return lines(ctx, (x, y), (y_low, x_low), bottom, (y_high, x_low), top)


def maximum_lines(ctx: Context, x: Operand, y: Operand) -> Lines | None:
    """Relax max(x, y) = y + relu(x - y): exact in floating point. Truth values have no lines."""
    return _extreme(ctx, x, y, 1.0)


def minimum_lines(ctx: Context, x: Operand, y: Operand) -> Lines | None:
    """Relax min(x, y) = y - relu(y - x)."""
    return _extreme(ctx, x, y, -1.0)


def _extreme(ctx: Context, x: Operand, y: Operand, sign: float) -> Lines | None:
    varying = [v for v in (x, y) if isinstance(v, Interval)]
    if any(v.dtype == torch.bool for v in varying):
        return None
    dtype = varying[0].dtype
    ends = [(v.lower, v.upper) if isinstance(v, Interval) else (torch.as_tensor(v, dtype=dtype),) * 2 for v in (x, y)]
    shape = joint_shape(x, y)
    (x_low, x_high), (y_low, y_high) = (tuple(v.expand(shape).double() for v in e) for e in ends)
    # d = x - y for the maximum, y - x for the minimum; the extreme is y + sign * relu(d).
    low, high = (x_low - y_high, x_high - y_low) if sign > 0 else (y_low - x_high, y_high - x_low)
    low, high = low.clamp(max=0), high.clamp(min=0)
    width = torch.where(high > low, high - low, torch.ones_like(low))
    chord = (high / width).to(dtype).nan_to_num(1.0).clamp(0, 1).double()
    chord = torch.where(low == 0, torch.ones_like(chord), torch.where(high == 0, torch.zeros_like(chord), chord))
    at_low = torch.where(chord == 0, torch.zeros_like(low), -chord * low)
    at_high = torch.where(chord == 1, torch.zeros_like(low), (1 - chord) * high)
    top = torch.maximum(at_low, at_high) * (1 + FEW_ROUNDINGS) + FEW_ROUNDINGS * (high - low)
    flat = torch.where(high + low > 0, 1.0, 0.0).double()
    zero = torch.zeros_like(top)
    if sign > 0:
        return _mix(ctx, x, y, flat, zero, chord, top, dtype)
    return _mix(ctx, x, y, chord, -top, flat, zero, dtype)


def _mix(
    ctx: Context,
    x: Operand,
    y: Operand,
    below: Tensor,
    bottom: Tensor,
    above: Tensor,
    top: Tensor,
    dtype: torch.dtype,
) -> Lines:
    """Make lines s x + (1 - s) y + t; constants go into the intercepts. 1 - s is exact for s in [0, 1] as used."""
    operands, lower, upper = [], [], []
    for value, low, high in ((x, below, above), (y, 1 - below, 1 - above)):
        if isinstance(value, Interval):
            lost = [(s - s.to(dtype).double()).abs() * value.magnitude.double() for s in (low, high)]
            bottom, top = bottom - lost[0], top + lost[1]
            operands.append(value)
            lower.append(low.to(dtype))
            upper.append(high.to(dtype))
        else:
            constant = torch.as_tensor(value, dtype=dtype).double()
            bottom, top = bottom + low * constant, top + high * constant
            bottom, top = bottom - FEW_ROUNDINGS * constant.abs(), top + FEW_ROUNDINGS * constant.abs()
    if ctx.soundness is Soundness.NONE:
        bottom, top = bottom.to(dtype), top.to(dtype)
    return lines(ctx, operands, lower, bottom, upper, top)


@dataclass(frozen=True)
class Masked:
    """Lines of a value that is infinite at some entries whatever its operands are.

    A softmax gives such entries coefficients of 0; of other coefficients there nothing is known.
    """

    finite: Lines  # 0 at the infinite entries
    infinite: Tensor  # (B, *out) bool

    owes = 0.0

    @property
    def loose(self) -> Tensor | bool:
        return self.finite.loose

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        found = self.finite.pull(a.masked_fill(self.infinite, 0.0), slope)
        lost = ((a != 0) & self.infinite).flatten(2).any(2)  # true for NaN
        return dataclasses.replace(found, offset=found.offset.masked_fill(lost, math.inf))

    def select(self, index: Index) -> Masked:
        return Masked(self.finite.select(index), self.infinite[index])


def where_lines(ctx: Context, condition: Any, x: Operand, y: Operand) -> Relaxation | None:
    """Relax x where a constant condition holds, else y: exact."""
    if isinstance(condition, Interval):
        return None
    varying = [v for v in (x, y) if isinstance(v, Interval)]
    dtype = varying[0].dtype
    shape = joint_shape(condition, x, y)
    chosen = condition.expand(shape)
    constant = torch.zeros(shape, dtype=dtype, device=condition.device)
    slopes: list[Slope] = []
    for value, here in ((x, chosen), (y, ~chosen)):
        if isinstance(value, Interval):
            slopes.append(here.to(dtype))
        else:
            constant = torch.where(here, torch.as_tensor(value, dtype=dtype), constant)
    infinite = constant.isinf()
    if not bool(infinite.any()):
        return lines(ctx, varying, slopes, wide(ctx, constant), slopes, wide(ctx, constant))
    constant = wide(ctx, constant.masked_fill(infinite, 0.0))
    return Masked(
        lines(ctx, varying, slopes, constant, slopes, constant), infinite.expand(varying[0].shape[0], *shape[1:])
    )


def masked_fill_lines(ctx: Context, x: Operand, mask: Any, value: Operand) -> Relaxation | None:
    """Relax ``value`` where a constant mask holds, else x."""
    if isinstance(mask, Interval) or (isinstance(value, Interval) and isinstance(x, Interval)):
        return None  # where_lines would give the operands in the other order
    return where_lines(ctx, mask, value, x)


def same_lines(ctx: Context, x: Operand, dtype: Any = None, *_: Any, **__: Any) -> Lines | None:
    """Relax a conversion to the dtype that x has; ``dtype``: that, or a tensor of it."""
    wanted = dtype.dtype if isinstance(dtype, Tensor) else dtype
    if not isinstance(x, Interval) or isinstance(dtype, Interval) or wanted not in (None, x.dtype):
        return None  # to another one, coefficients would have to be converted, too
    zero, slopes = wide(ctx, torch.zeros_like(x.lower)), (1.0,)
    return lines(ctx, (x,), slopes, zero, slopes, zero)


def joint_shape(*operands: Operand) -> torch.Size:
    """Return the shape that operands are broadcast to."""
    shapes = [tuple(v.shape) for v in operands if isinstance(v, (Interval, Tensor))]
    found: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return found


def wide(ctx: Context, value: Tensor) -> Tensor:
    return value if ctx.soundness is Soundness.NONE else value.double()


def own_rounding(ctx: Context, size: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    """Bound the network's own rounding of a result of this size; infinite where it may overflow."""
    if ctx.soundness is not Soundness.DEPLOYED:
        return torch.zeros_like(size)
    error = size * (2 * count * unit_roundoff(dtype)) + 8 * tiny(dtype)
    return torch.where(size > torch.finfo(dtype).max / 4, torch.full_like(error, torch.inf), error)
