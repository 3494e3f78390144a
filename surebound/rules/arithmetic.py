"""Sums, differences, products and quotients: with constants affine, between intervals by their ends.

A number in the network's code means that number converted to the tensor's dtype: what every execution uses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import Soundness, defined, has_subnormal, outward, pay, tiny
from surebound.rules.activation import elementwise_interval
from surebound.rules.facts import Affine, Local, Stacks
from surebound.rules.mip.arithmetic import encode_difference, encode_product, encode_quotient, encode_sum
from surebound.rules.power import SQUARE, check_clear_of_zero
from surebound.rules.registry import Context, IntervalRule, Rule, register
from surebound.rules.relax.lines import Lines
from surebound.rules.relax.pairs import difference_lines, product_lines, reverse_difference_lines, sum_lines
from surebound.rules.relax.pointwise import pointwise_lines
from surebound.rules.relax.quotient import quotient_lines
from surebound.rules.vjp import reduce_to

Operand = Interval | Tensor | float | int


def _broadcast(value: Tensor, shape: torch.Size) -> Tensor:
    return value if value.shape == shape else value.expand(shape)


def _ends(ctx: Context, lower: Tensor, upper: Tensor, *operands: Any) -> Interval:
    """Widen the ends by one rounding; the operands and the result may be flushed to zero.

    Where all operands are known not to be negative, no execution makes a sum, product or quotient of them negative:
    the root of a sum of squares must stay defined.
    """
    lower, upper = outward(lower, upper, ctx.soundness, 1, underflow=4)
    if ctx.soundness is not Soundness.NONE:
        none_negative: Any = True
        for value in operands:
            none_negative = ((value.lower if isinstance(value, Interval) else value) >= 0) & none_negative
        if none_negative is not False:
            lower = torch.where(torch.as_tensor(none_negative, device=lower.device), lower.clamp(min=0), lower)
        lower, upper = defined(lower, upper)
    return Interval(lower, upper)


def _unflushed(ctx: Context, x: Interval) -> tuple[Tensor, Tensor]:
    """Return ends that also contain what hardware reads if it flushes subnormal numbers to zero."""
    if ctx.soundness is Soundness.NONE:
        return x.lower, x.upper
    return x.lower - tiny(x.dtype), x.upper + tiny(x.dtype)


def add_interval(ctx: Context, x: Operand, y: Operand, alpha: float = 1) -> Interval:
    """Bound x + alpha y, either or both varying."""
    if isinstance(y, Interval):
        scaled: Operand = y if alpha == 1 else scale_interval(ctx, y, alpha)
    else:
        scaled = y if alpha == 1 else y * alpha
    if isinstance(x, Interval) and isinstance(scaled, Interval):
        if x.centered and scaled.centered:
            center = x.center + scaled.center
            radius = x.radius + scaled.radius
            return Interval.around(center, pay(center, _broadcast(radius, center.shape), ctx.soundness))
        return _ends(ctx, x.lower + scaled.lower, x.upper + scaled.upper, x, scaled)
    if isinstance(x, Interval) and not isinstance(scaled, Interval):
        return _shift(ctx, x, scaled)
    if isinstance(scaled, Interval) and not isinstance(x, Interval):
        return _shift(ctx, scaled, x)
    raise BoundError("add_interval needs an operand that varies")


def _shift(ctx: Context, interval: Interval, constant: Tensor | float) -> Interval:
    if interval.centered:
        center = interval.center + constant
        return Interval.around(center, pay(center, _broadcast(interval.radius, center.shape), ctx.soundness))
    return _ends(ctx, interval.lower + constant, interval.upper + constant, interval, constant)


def sub_interval(ctx: Context, x: Operand, y: Operand, alpha: float = 1) -> Interval:
    """Bound x - alpha y; of one tensor with itself, exactly 0."""
    if x is y and alpha == 1 and isinstance(x, Interval):
        return Interval(*defined(x.lower - x.lower, x.upper - x.upper))  # NaN where an end is infinite
    return add_interval(ctx, x, y, alpha=-alpha)


def rsub_interval(ctx: Context, x: Operand, y: Operand, alpha: float = 1) -> Interval:
    """Bound y - alpha x."""
    return sub_interval(ctx, y, x, alpha)


def negate_interval(ctx: Context, x: Interval) -> Interval:
    """Bound -x: exact."""
    if x.centered:
        return Interval.around(-x.center, x.radius)
    return Interval(-x.upper, -x.lower)


def scale_interval(ctx: Context, x: Interval, factor: Tensor | float) -> Interval:
    """Bound x times a constant of any sign."""
    if ctx.soundness is not Soundness.NONE and isinstance(factor, Tensor) and has_subnormal(factor):
        return mul_interval(ctx, x, Interval(factor, factor))
    if x.centered:
        center = x.center * factor
        radius = x.radius if ctx.soundness is Soundness.NONE else x.radius + 2 * tiny(x.dtype)
        radius = radius * (factor.abs() if isinstance(factor, Tensor) else abs(factor))
        return Interval.around(center, pay(center, _broadcast(radius, center.shape), ctx.soundness))
    lower, upper = _unflushed(ctx, x)
    a, b = lower * factor, upper * factor
    return _ends(ctx, torch.minimum(a, b), torch.maximum(a, b), x, factor)


def mul_interval(ctx: Context, x: Operand, y: Operand) -> Interval:
    """Bound x y: by the four products of ends when both vary; of one tensor with itself, its square."""
    if isinstance(x, Interval) and isinstance(y, Interval):
        if x is y:
            return elementwise_interval(SQUARE, ctx, x)
        x, y = _numbers(x, y.dtype), _numbers(y, x.dtype)
        found = _corners(ctx, [a * b for a in _unflushed(ctx, x) for b in _unflushed(ctx, y)], x, y)
        odd = (_may_be_infinite(x) & _may_be_zero(y)) | (_may_be_zero(x) & _may_be_infinite(y))
        return found.select(lambda end: end.masked_fill(odd, math.nan)) if bool(odd.any()) else found
    if isinstance(x, Interval):
        return scale_interval(ctx, x, y)  # type: ignore[arg-type]
    if not isinstance(y, Interval):
        raise BoundError("mul_interval needs an operand that varies")
    return scale_interval(ctx, y, x)


def _may_be_infinite(x: Interval) -> Tensor:
    return x.lower.isinf() | x.upper.isinf()


def _may_be_zero(x: Interval) -> Tensor:
    """Say where a value may be 0, if subnormal numbers are flushed."""
    return (x.lower < tiny(x.dtype)) & (x.upper > -tiny(x.dtype))


def _numbers(x: Interval, dtype: torch.dtype) -> Interval:
    """Return truth values as 0 and 1, to be multiplied with numbers: (x > 0) * x."""
    return x.select(lambda v: v.to(dtype)) if x.dtype == torch.bool else x


def _corners(ctx: Context, values: list[Tensor], *operands: Any) -> Interval:
    lower = torch.minimum(torch.minimum(values[0], values[1]), torch.minimum(values[2], values[3]))
    upper = torch.maximum(torch.maximum(values[0], values[1]), torch.maximum(values[2], values[3]))
    return _ends(ctx, lower, upper, *operands)


def _mul_lines(ctx: Context, x: Operand, y: Operand) -> Lines | None:
    """Relax x y by McCormick's planes; of one tensor with itself, by the lines of its square."""
    if x is not y or not isinstance(x, Interval) or x.dtype == torch.bool:
        return product_lines(ctx, x, y)
    square = pointwise_lines(SQUARE, partial(elementwise_interval, SQUARE), None, ctx, x)
    if square is None:
        return None
    return Lines(
        (x.shape, x.shape),
        (*square.lower, 0.0),
        (*square.upper, 0.0),
        square.lower_intercept,
        square.upper_intercept,
        square.absolute,
    )


def div_interval(ctx: Context, x: Operand, y: Operand) -> Interval:
    """Bound x / y where y is a constant of any sign but 0, or an interval that does not contain 0."""
    top: Any = _unflushed(ctx, x) if isinstance(x, Interval) else (x, x)
    if isinstance(y, Interval):
        check_clear_of_zero(ctx, y, "division by")
        return _corners(ctx, [n / d for n in top for d in (y.lower, y.upper)], x, y)
    if not isinstance(x, Interval):
        raise BoundError("div_interval needs an operand that varies")
    divisor = torch.as_tensor(y)
    smallest = tiny(x.dtype) if ctx.soundness is not Soundness.NONE else 0.0
    if bool(((divisor == 0) | (divisor.abs() < smallest)).any()):
        raise BoundError("division by a constant that is 0 (or subnormal): the quotient has no bound")
    a, b = top[0] / y, top[1] / y  # not through 1 / y, which would round twice
    return _ends(ctx, torch.minimum(a, b), torch.maximum(a, b), x, y)


def _two(*_: Any, **__: Any) -> int:
    return 2


def _spread(c: Any, *_: Any, **__: Any) -> int:
    """Count the summands of a coefficient: the operand may have been broadcast along every axis of the constant."""
    return 2 + (c.numel() if isinstance(c, Tensor) and c.numel() > 1 else 0)


def _size(value: Any) -> Any:
    return value.abs() if isinstance(value, Tensor) else abs(value)


def _same_everywhere(c: Any, alpha: Any = 1) -> Local | None:
    """Return ``Local()`` if a constant is the same at all positions of images (B, C, H, W) and for all examples."""
    if isinstance(c, Tensor) and (c.dim() > 4 or any(n != 1 for n in (*c.shape[-2:], *c.shape[: max(0, c.dim() - 3)]))):
        return None
    return Local()


def _not_broadcast(in_shape: Sequence[int], c: Any, *_: Any, **__: Any) -> bool:
    """Is the operand not repeated to fit a constant?"""
    if not isinstance(c, Tensor):
        return True
    return c.dim() <= len(in_shape) and all(
        n in (1, m) for n, m in zip(reversed(c.shape), reversed(in_shape), strict=False)
    )


def _linear(sign: int, first: bool, position: int) -> Affine:
    """Return the facts of +-(alpha or 1) x + ...: ``first`` if alpha multiplies the constant and not x."""

    def adjoint(a: Tensor, in_shape: torch.Size, c: Any, alpha: float = 1) -> Tensor:
        return reduce_to(a if first and sign > 0 else a * (sign * (1 if first else alpha)), in_shape)

    return Affine(
        adjoint=adjoint,
        magnitude=lambda m, c, alpha=1: m * (1 if first else abs(alpha)) + _size(c) * (abs(alpha) if first else 1),
        terms=_two,
        adjoint_terms=_spread,
        position=position,
        local=_same_everywhere,
        local_adjoint=adjoint,
        entrywise=True,
        disjoint=_not_broadcast,
    )


def _encode_rsub(encoder: Any, shape: Any, x: Any, y: Any, alpha: float = 1) -> Any:
    return encode_difference(encoder, shape, y, x, alpha=alpha)


def _times_adjoint(a: Tensor, in_shape: torch.Size, c: Any) -> Tensor:
    return reduce_to(a * c, in_shape)


def _quotient_adjoint(a: Tensor, in_shape: torch.Size, c: Any) -> Tensor:
    return reduce_to(a / c, in_shape)


_TIMES = Affine(
    adjoint=_times_adjoint,
    magnitude=lambda m, c: m * _size(c),
    terms=_two,
    adjoint_terms=_spread,
    local=_same_everywhere,
    local_adjoint=_times_adjoint,
    entrywise=True,
    disjoint=_not_broadcast,
)
_QUOTIENT = Affine(
    adjoint=_quotient_adjoint,
    magnitude=lambda m, c: m / _size(c),
    terms=_two,
    adjoint_terms=_spread,
    local=_same_everywhere,
    local_adjoint=_quotient_adjoint,
    entrywise=True,
    disjoint=_not_broadcast,
)


def _register(
    name: str, interval: IntervalRule, lines: Callable[..., Any], mip: Callable[..., Any], *affine: Affine
) -> None:
    """Register an operator of two operands; ``affine``: the facts for each position of the one varying argument."""
    for overload, relax in (("Tensor", lines), ("Scalar", None)):  # with a number it is affine
        op = f"aten.{name}.{overload}"
        known = Rule(op, "arithmetic", interval, affine[0], relax=relax, mip=mip, also=affine[1:], pointwise=True)
        stacks = Stacks(torch.add, 2) if name == "add" and overload == "Tensor" else None
        register(dataclasses.replace(known, multiplies=name in ("mul", "div"), stacks=stacks))


_register("add", add_interval, sum_lines, encode_sum, _linear(1, True, 0), _linear(1, False, 1))
_register("sub", sub_interval, difference_lines, encode_difference, _linear(1, True, 0), _linear(-1, False, 1))
_register("rsub", rsub_interval, reverse_difference_lines, _encode_rsub, _linear(-1, False, 0), _linear(1, True, 1))
_register("mul", mul_interval, _mul_lines, encode_product, _TIMES, dataclasses.replace(_TIMES, position=1))
_register("div", div_interval, quotient_lines, encode_quotient, _QUOTIENT)
register(
    Rule(
        "aten.neg.default",
        "arithmetic",
        negate_interval,
        Affine(
            adjoint=lambda a, in_shape: -a,
            magnitude=lambda m: m,
            terms=lambda: 0,
            adjoint_terms=lambda: 0,
            entrywise=True,
        ),
    )
)
