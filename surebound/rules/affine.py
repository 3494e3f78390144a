"""What all affine operators share: two applications and the rounding that they pay (docs/soundness.md, Lemma 1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import AffineRounding, has_subnormal, tiny
from surebound.rules.registry import Context

Apply = Callable[[Tensor], Tensor]
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # (x, weight, bias)


def averaged(ctx: Context, x: Interval, terms: int, apply: Apply, blur: Tensor | None = None) -> Interval:
    """Bounds of a linear operator with coefficients >= 0: sums, averages, interpolations.

    ``terms`` counts the roundings of one output; ``blur`` is what uncertain coefficients may cost.
    """
    center = apply(x.center)
    rounding = AffineRounding.of(terms, x.dtype, ctx.soundness)
    if rounding.is_free:
        return Interval.around(center, apply(x.radius))
    radius = apply(rounding.radius_in(x.center, x.radius)) + rounding.absolute
    if blur is not None:
        radius = radius + blur
    return Interval.around(center, rounding.guarded(radius))


def weighted(
    ctx: Context,
    x: Interval,
    weight: Tensor,
    bias: Tensor | Interval | None,
    terms: int,
    outputs: int,
    product: Product,
) -> Interval:
    """Interval bounds of ``product``, linear in x with ``outputs`` rows of ``terms`` summands."""
    rounding = AffineRounding.of(terms, x.dtype, ctx.soundness)
    if ctx.owned and not isinstance(bias, Interval):
        return _weighted_in_place(x, weight, bias, terms, outputs, product, rounding)
    center = product(x.center, weight, bias.center if isinstance(bias, Interval) else bias)
    if rounding.is_free:
        radius_bias = bias.radius if isinstance(bias, Interval) else None
        return Interval.around(center, product(x.radius, weight.abs(), radius_bias))
    if isinstance(bias, Interval):  # one more summand, with coefficient 1
        extra = rounding.radius_in(bias.center, bias.radius) + rounding.absolute
    else:
        extra = _extra(rounding, weight, bias, outputs)
    if has_subnormal(weight):  # hardware that flushes them to zero loses at most tiny * |x| per term
        extra = extra + 4 * terms * tiny(weight.dtype) * x.magnitude.max()
    radius = product(rounding.radius_in(x.center, x.radius), weight.abs(), extra)
    return Interval.around(center, rounding.guarded(radius))


def _extra(rounding: AffineRounding, weight: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    extra = rounding.bias_in(bias)
    return extra if isinstance(extra, Tensor) else weight.new_full((outputs,), extra)


def _weighted_in_place(
    x: Interval,
    weight: Tensor,
    bias: Tensor | None,
    terms: int,
    outputs: int,
    product: Product,
    rounding: AffineRounding,
) -> Interval:
    """``weighted`` in the memory of x: at any time one value more than the result's two."""
    center_in, radius_in = x.consume_center()
    center = product(center_in, weight, bias)
    size = weight.abs()
    if rounding.is_free:
        del center_in
        return Interval.around(center, product(radius_in, size, None))
    extra = _extra(rounding, weight, bias, outputs)
    if has_subnormal(weight):
        extra = extra + 4 * terms * tiny(weight.dtype) * (center_in.abs() + radius_in).max()
    radius_in, size, more = rounding.in_place(center_in, radius_in, size, terms)
    del center_in
    return Interval.around(center, rounding.guarded(product(radius_in, size, extra + more)))


def both_vary(
    ctx: Context, x: Interval, y: Interval, terms: int, product: Callable[[Tensor, Tensor], Tensor]
) -> Interval:
    """Bounds of a bilinear operator of two intervals: |x y - cx cy| <= rx (|cy| + ry) + |cx| ry (four products).

    At most 1.5 times as wide as the exact hull (Rump, Fast and parallel interval arithmetic, 1999).
    """
    rounding = AffineRounding.of(terms, x.dtype, ctx.soundness)
    center = product(x.center, y.center)
    if rounding.is_free:
        spread = product(x.radius, y.center.abs() + y.radius) + product(x.center.abs(), y.radius)
        return Interval.around(center, spread)
    # Radii that hold the rounding of the conversion and of the products, as if each side alone varied.
    rx, ry = rounding.radius_in(x.center, x.radius), rounding.radius_in(y.center, y.radius)
    size = y.center.abs() + ry
    radius = product(rx, size) + product(x.center.abs(), ry)
    radius = radius * rounding.on_radius + rounding.absolute
    return Interval.around(center, rounding.guarded(radius))


def widest(value: Tensor, dims: tuple[int, ...]) -> Tensor:
    """max |value| over some axes, kept: (B, C, 1, ...)."""
    return torch.amax(value, dim=dims, keepdim=True)
