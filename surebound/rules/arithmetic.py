"""Sums, differences, products and quotients: with constants affine, between intervals by their ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import outward, pay
from surebound.rules.mip_arithmetic import encode_difference, encode_product, encode_quotient, encode_sum
from surebound.rules.registry import Affine, Context, Rule, register

Operand = Interval | Tensor | float | int


def _broadcast(value: Tensor, shape: torch.Size) -> Tensor:
    return value if value.shape == shape else value.expand(shape)


def add_interval(ctx: Context, x: Operand, y: Operand, *, alpha: float = 1) -> Interval:
    """x + alpha y, either or both varying."""
    if isinstance(y, Interval):
        scaled: Operand = y if alpha == 1 else scale_interval(ctx, y, alpha)
    else:
        scaled = y * alpha
    if isinstance(x, Interval) and isinstance(scaled, Interval):
        if x.centered and scaled.centered:
            center = x.center + scaled.center
            radius = x.radius + scaled.radius
            return Interval.around(center, pay(center, _broadcast(radius, center.shape), ctx.soundness))
        return _ends(ctx, x.lower + scaled.lower, x.upper + scaled.upper)
    interval, constant = (x, scaled) if isinstance(x, Interval) else (scaled, x)
    if not isinstance(interval, Interval):
        raise BoundError("add_interval needs an operand that varies")
    if interval.centered:
        center = interval.center + constant
        return Interval.around(center, pay(center, _broadcast(interval.radius, center.shape), ctx.soundness))
    return _ends(ctx, interval.lower + constant, interval.upper + constant)


def _ends(ctx: Context, lower: Tensor, upper: Tensor) -> Interval:
    return Interval(*outward(lower, upper, ctx.soundness, 1))


def negate_interval(ctx: Context, x: Interval) -> Interval:
    """-x: exact."""
    if x.centered:
        return Interval.around(-x.center, x.radius)
    return Interval(-x.upper, -x.lower)


def scale_interval(ctx: Context, x: Interval, factor: Tensor | float) -> Interval:
    """x times a constant of any sign."""
    if x.centered:
        center = x.center * factor
        radius = x.radius * (factor.abs() if isinstance(factor, Tensor) else abs(factor))
        return Interval.around(center, pay(center, radius, ctx.soundness))
    a, b = x.lower * factor, x.upper * factor
    return _ends(ctx, torch.minimum(a, b), torch.maximum(a, b))


def sub_interval(ctx: Context, x: Operand, y: Operand, *, alpha: float = 1) -> Interval:
    """x - alpha y."""
    return add_interval(ctx, x, y, alpha=-alpha)


def mul_interval(ctx: Context, x: Operand, y: Operand) -> Interval:
    """x y: the extreme of the four products of ends when both vary."""
    if isinstance(x, Interval) and isinstance(y, Interval):
        products = (x.lower * y.lower, x.lower * y.upper, x.upper * y.lower, x.upper * y.upper)
        lower = torch.minimum(
            torch.minimum(products[0], products[1]), torch.minimum(products[2], products[3])
        )
        upper = torch.maximum(
            torch.maximum(products[0], products[1]), torch.maximum(products[2], products[3])
        )
        return _ends(ctx, lower, upper)
    return scale_interval(ctx, x, y) if isinstance(x, Interval) else scale_interval(ctx, y, x)  # type: ignore[arg-type]


def div_interval(ctx: Context, x: Operand, y: Operand) -> Interval:
    """x / y where y is a constant of any sign but 0, or an interval that does not contain 0."""
    if isinstance(y, Interval):
        if not bool(((y.lower > 0) | (y.upper < 0)).all()):
            raise BoundError(
                "division by an interval that contains 0: the quotient has no bound; keep the divisor's sign definite"
            )
        ends = x if isinstance(x, Interval) else None
        top = (ends.lower, ends.upper) if ends is not None else (x, x)
        quotients = [n / d for n in top for d in (y.lower, y.upper)]  # type: ignore[operator]
        lower = torch.minimum(
            torch.minimum(quotients[0], quotients[1]), torch.minimum(quotients[2], quotients[3])
        )
        upper = torch.maximum(
            torch.maximum(quotients[0], quotients[1]), torch.maximum(quotients[2], quotients[3])
        )
        return _ends(ctx, lower, upper)
    if not isinstance(x, Interval):
        raise BoundError("div_interval needs an operand that varies")
    if bool((torch.as_tensor(y) == 0).any()):
        raise BoundError("division by a constant that is 0: the quotient has no bound")
    a, b = x.lower / y, x.upper / y  # not through 1 / y, which would round twice
    return _ends(ctx, torch.minimum(a, b), torch.maximum(a, b))


def _reduce_to(a: Tensor, in_shape: torch.Size) -> Tensor:
    """Sum a (S, B, *out) over the axes along which the operator broadcast its argument."""
    target = torch.Size((a.shape[0], *in_shape))
    extra = a.dim() - len(target)
    if extra:
        a = a.sum(dim=tuple(range(1, 1 + extra)))
    axes = tuple(i for i, (have, want) in enumerate(zip(a.shape, target, strict=True)) if have != want)
    return a.sum(dim=axes, keepdim=True) if axes else a


def _one(*_: Any, **__: Any) -> int:
    return 2


def _const(value: Any) -> Any:
    return value.abs() if isinstance(value, Tensor) else abs(value)


register(
    Rule(
        "aten.add.Tensor",
        "arithmetic",
        add_interval,
        Affine(
            adjoint=lambda a, in_shape, c, alpha=1: _reduce_to(a, in_shape),
            magnitude=lambda m, c, alpha=1: m + _const(c) * abs(alpha),
            terms=_one,
            adjoint_terms=_one,
        ),
        mip=encode_sum,
    )
)
register(
    Rule(
        "aten.sub.Tensor",
        "arithmetic",
        sub_interval,
        Affine(
            adjoint=lambda a, in_shape, c, alpha=1: _reduce_to(a, in_shape),
            magnitude=lambda m, c, alpha=1: m + _const(c) * abs(alpha),
            terms=_one,
            adjoint_terms=_one,
        ),
        mip=encode_difference,
    )
)
register(
    Rule(
        "aten.mul.Tensor",
        "arithmetic",
        mul_interval,
        Affine(
            adjoint=lambda a, in_shape, c: _reduce_to(a * c, in_shape),
            magnitude=lambda m, c: m * _const(c),
            terms=_one,
            adjoint_terms=_one,
        ),
        mip=encode_product,
    )
)
register(
    Rule(
        "aten.div.Tensor",
        "arithmetic",
        div_interval,
        Affine(
            adjoint=lambda a, in_shape, c: _reduce_to(a / c, in_shape),
            magnitude=lambda m, c: m / _const(c),
            terms=_one,
            adjoint_terms=_one,
        ),
        mip=encode_quotient,
    )
)
register(
    Rule(
        "aten.neg.default",
        "arithmetic",
        negate_interval,
        Affine(
            adjoint=lambda a, in_shape: -a, magnitude=lambda m: m, terms=lambda: 0, adjoint_terms=lambda: 0
        ),
    )
)
