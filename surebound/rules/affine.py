"""What all affine operators share: two applications and the rounding that they pay (docs/soundness.md, Lemma 1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import AffineRounding, extent, extent_of_sizes, has_subnormal, tiny
from surebound.rules.registry import Context

#: Entries of a matrix whose absolute values are held at a time (2 MiB of float32).
BLOCK = 1 << 19

Apply = Callable[[Tensor], Tensor]
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # (x, weight, bias)


def averaged(ctx: Context, x: Interval, terms: int, apply: Apply, blur: Tensor | None = None) -> Interval:
    """Bounds of a linear operator with coefficients >= 0: sums, averages, interpolations.

    ``terms`` counts the roundings of one output; ``blur`` is what uncertain coefficients may cost.
    """
    rounding = AffineRounding.of(terms, x.dtype, ctx.soundness)
    if not x.centered and (rounding.is_free or bool((x.lower >= 0).all())):
        return _averaged_ends(x, rounding, apply, blur)
    center = apply(x.center)
    if rounding.is_free:
        return Interval.around(center, apply(x.radius))
    radius = apply(rounding.radius_in(x.center, x.radius)) + rounding.absolute
    if blur is not None:
        radius = radius + blur
    return Interval.around(center, rounding.guarded(radius))


def _averaged_ends(x: Interval, rounding: AffineRounding, apply: Apply, blur: Tensor | None) -> Interval:
    """By the ends, where these are not negative: then rounding is relative and no execution goes below 0."""
    lower, upper = apply(x.lower), apply(x.upper)
    if rounding.is_free:
        return Interval(lower, upper)
    largest = float(torch.finfo(x.dtype).max)  # where our own sum overflows, another order may not
    lower = lower.clamp(max=largest) * (1 - rounding.on_center) - rounding.absolute
    upper = upper * (1 + rounding.on_center) + rounding.absolute
    if blur is not None:
        lower, upper = lower - blur, upper + blur
    return Interval(lower.clamp(min=0), upper)


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
    if not isinstance(bias, Interval):
        return _with_constant_bias(ctx, x, weight, bias, terms, outputs, product, rounding)
    center = product(x.center, weight, bias.center)
    if rounding.is_free:
        return Interval.around(center, product(x.radius, weight.abs(), bias.radius))
    # The bias is one more summand, with coefficient 1.
    extra = rounding.radius_in(bias.center, bias.radius) + rounding.absolute
    if has_subnormal(weight):  # hardware that flushes them to zero loses at most tiny * |x| per term
        extra = extra + 4 * terms * tiny(weight.dtype) * x.magnitude.max()
    radius = product(rounding.radius_in(x.center, x.radius), weight.abs(), extra)
    return Interval.around(center, rounding.guarded(radius))


def _extra(rounding: AffineRounding, weight: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    extra = rounding.bias_in(bias)
    return extra if isinstance(extra, Tensor) else weight.new_full((outputs,), extra)


def _with_constant_bias(
    ctx: Context,
    x: Interval,
    weight: Tensor,
    bias: Tensor | None,
    terms: int,
    outputs: int,
    product: Product,
    rounding: AffineRounding,
) -> Interval:
    """``weighted``; where x is owned in its memory: at any time one value more than the result's two.

    Scaling |A| instead of the radius, and paying for underflow after the product, saves passes over the activations.
    """
    center_in, radius_in, factor = x.consume_center() if ctx.owned else x.scaled_center()
    center = product(center_in, weight, bias)
    trains = torch.is_grad_enabled() and (weight.requires_grad or center.requires_grad)
    whole = trains or product is not F.linear or weight.numel() <= BLOCK
    size = weight.abs() if whole else None  # (out, ...)
    extra = None
    if not rounding.is_free:
        largest, subnormal = extent(weight) if size is None else extent_of_sizes(size)
        extra = _extra(rounding, weight, bias, outputs) + rounding.after(terms, largest)
        if subnormal:  # hardware that flushes them to zero loses at most tiny * |x| per term
            extra = extra + 4 * terms * tiny(weight.dtype) * (center_in.abs() + radius_in).max()
        paid = rounding.on_center / factor
        if ctx.owned:
            radius_in = radius_in.add_(center_in.abs_(), alpha=paid)
        else:
            radius_in = torch.add(radius_in, center_in.abs(), alpha=paid)
    del center_in
    scale = rounding.on_radius * factor
    if size is None:
        radius = _magnitude_by_rows(radius_in, weight, extra, scale)
    else:
        radius = product(radius_in, size if scale == 1 else size.mul_(scale), extra)
    return Interval.around(center, rounding.guarded(radius))


def _magnitude_by_rows(x: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """x (..., in) times scale |weight| (out, in) plus bias; the absolute values are made a few rows at a time."""
    rows = max(1, BLOCK // weight.shape[1])
    block = weight.new_empty(rows, weight.shape[1])
    out = x.new_empty(*x.shape[:-1], weight.shape[0])
    for i in range(0, weight.shape[0], rows):
        part = weight.detach()[i : i + rows]
        size = torch.abs(part, out=block[: len(part)]).mul_(scale)
        out[..., i : i + rows] = F.linear(x, size, None if bias is None else bias[i : i + rows])
    return out


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
