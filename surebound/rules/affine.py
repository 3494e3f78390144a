"""Interval bounds of affine operators: two products, and their rounding error bounds (docs/soundness.md, Lemma 1)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.interval import Interval
from surebound.kernels import rounding as reads
from surebound.numerics import AffineRounding, has_subnormal, per_example, tiny
from surebound.rules.owned import Owned
from surebound.rules.registry import Context, Sizes

#: Entries of a matrix whose absolute values are held at a time (2 MiB of float32).
BLOCK = 1 << 19

Apply = Callable[[Tensor], Tensor]
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # (x, weight, bias)


def averaged(ctx: Context, x: Interval, terms: int, apply: Apply, blur: Tensor | None = None) -> Interval:
    """Bound a linear operator with coefficients >= 0: a sum, an average, an interpolation.

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
    """Average the ends, where they are not negative: then rounding is relative and no execution goes below 0."""
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
    *,
    batched: bool = False,
) -> Interval:
    """Bound ``product`` + bias by intervals; it is linear in x, with ``outputs`` rows of ``terms`` summands.

    ``batched``: is the first axis one of examples? Only then ``Sizes`` may be asked for.
    """
    rounding = AffineRounding.of(terms, x.dtype, ctx.soundness)
    if not isinstance(bias, Interval):
        sizes = ctx.sizes if batched and not rounding.is_free else None
        if sizes is not None and _trains(weight, x.lower, x.upper):  # only then: ends of x cost a pass
            sizes = None
        return _with_constant_bias(x, weight, bias, terms, outputs, product, rounding, sizes)
    center = product(x.center, weight, bias.center)
    if rounding.is_free:
        return Interval.around(center, product(x.radius, weight.abs(), bias.radius))
    # The bias is one more summand, with coefficient 1.
    extra = rounding.radius_in(bias.center, bias.radius) + rounding.absolute
    if has_subnormal(weight):  # hardware that flushes them to zero loses at most tiny * |x| per term
        extra = extra + 4 * terms * tiny(weight.dtype) * x.magnitude.max()
    radius = product(rounding.radius_in(x.center, x.radius), weight.abs(), extra)
    return Interval.around(center, rounding.guarded(radius))


def _flushed(terms: int, size: Tensor, rate: float = 1.0) -> Tensor:
    """Bound what flushing subnormal weights to zero may lose: tiny |x| per term, |x| <= 2 rate size, generously."""
    return 16 * terms * tiny(size.dtype) * rate * size.max()


def _extra(rounding: AffineRounding, weight: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    extra = rounding.bias_in(bias)
    return extra if isinstance(extra, Tensor) else weight.new_full((outputs,), extra)


def _with_constant_bias(
    x: Interval,
    weight: Tensor,
    bias: Tensor | None,
    terms: int,
    outputs: int,
    product: Product,
    rounding: AffineRounding,
    sizes: Sizes | None,
) -> Interval:
    """Compute ``weighted``, in the memory of x where that is owned: never more than one tensor beyond the result's two.

    Adding for underflow after the product, and scaling the smaller factor of |A| r, saves passes. ``sizes`` cost a
    product only where an interval does not touch 0, because max |x| = 2 r + max(lower, -upper).
    """
    owned = isinstance(x, Owned)
    if sizes is None:
        center_in, radius_in, factor = x.take_center() if isinstance(x, Owned) else x.scaled_center()
        clear = None
    else:
        center_in, radius_in, factor, clear, sizes.entry = _entry(x, rounding)
    center = product(center_in, weight, bias)
    if sizes is None and not rounding.is_free:  # not earlier: where the centre is owned, it is overwritten
        radius_in = reads.paid(center_in, radius_in, rounding.on_center / factor, owned=owned)
    del center_in
    scale = rounding.on_radius * factor
    if product is F.linear and scale != 1:  # a matrix is larger than a vector, a kernel smaller than an image
        mine = owned or not (rounding.is_free or radius_in.requires_grad)
        radius_in, scale = radius_in.mul_(scale) if mine else radius_in * scale, 1.0

    def after(largest: float, subnormal: bool) -> Tensor:
        """Return what to add to |A| r for rounding of the bias, underflow, and subnormal weights that are flushed."""
        extra = _extra(rounding, weight, bias, outputs) + rounding.after(terms, largest)
        return extra + _flushed(terms, radius_in, factor / rounding.on_center) if subnormal else extra

    look, extra = not rounding.is_free, None
    if product is F.linear and by_rows(radius_in, weight):
        radius, rest, extent = magnitude_by_rows(radius_in, weight, clear, look=look)
        if extent is not None:
            radius = radius.add_(extra := after(*extent))
    else:
        size, extent = _sizes(weight, look=look)  # (out, ...)
        extra = None if extent is None else after(*extent)
        radius = product(radius_in, size if scale == 1 else size.mul_(scale), extra)
        rest = None if clear is None else product(clear, size, None)
    if sizes is None or sizes.entry is None or extent is None or extra is None:
        return Interval.around(center, rounding.guarded(radius))
    sizes.product = 2 * radius if rest is None else rest.mul_(1 / scale).add_(radius, alpha=2)
    # What |A| multiplies is below 8 max|x| whatever gamma is, and a sum is below twice what it should be.
    at_most = 16 * terms * extent[0] * _largest(sizes.entry) + 2 * _largest(extra)
    return Interval.around(center, rounding.guarded(radius, at_most))


def _largest(value: Tensor) -> float:
    return float(value.amax()) if value.numel() else 0.0


def _entry(x: Interval, rounding: AffineRounding) -> tuple[Tensor, Tensor, float, Tensor | None, Tensor]:
    """Return the centre; the radius with its rounding error bound, over a factor, and the factor; max(lower, -upper).

    All (B, *in), the last None if 0 throughout; and the largest |x| of each example (B,).
    """
    if not x.centered:
        center, paid, clear, most = reads.entry(x.lower, x.upper, 2 * rounding.on_center)
        return center, paid, 0.5, clear, most
    center, radius, factor = x.scaled_center()
    clear = torch.maximum(x.lower, x.upper.neg())
    paid = reads.paid(center, radius, rounding.on_center / factor, owned=False)
    return center, paid, factor, clear if bool(clear.any()) else None, per_example(x.magnitude)


def _sizes(weight: Tensor, to: Tensor | None = None, *, look: bool) -> tuple[Tensor, tuple[float, bool] | None]:
    """Return |weight|, in the memory ``to`` if given; if ``look``, also the largest and whether some are subnormal."""
    if not look:
        return weight.abs() if to is None else torch.abs(weight, out=to), None
    size, largest, subnormal = reads.sizes(weight, to)
    return size, (largest, subnormal)


def _trains(*values: Tensor) -> bool:
    """Are gradients wanted?"""
    return torch.is_grad_enabled() and any(v.requires_grad for v in values)


def by_rows(x: Tensor, weight: Tensor) -> bool:
    """Is a matrix too large to hold all its absolute values at once, and are they not needed for gradients?"""
    return weight.numel() > BLOCK and not _trains(x, weight)


def magnitude_by_rows(
    x: Tensor, weight: Tensor, y: Tensor | None = None, *, look: bool = False
) -> tuple[Tensor, Tensor | None, tuple[float, bool] | None]:
    """Multiply x and y (..., in) by |weight| (out, in), a few rows of |weight| at a time; if ``look``, extents."""
    rows = max(1, BLOCK // weight.shape[1])
    block = weight.new_empty(rows, weight.shape[1])
    operands = [x] if y is None else [x, y]
    out = [v.new_empty(*v.shape[:-1], weight.shape[0]) for v in operands]
    largest, subnormal = [0.0], False
    for i in range(0, weight.shape[0], rows):
        part = weight.detach()[i : i + rows]
        size, extent = _sizes(part, block[: len(part)], look=look)
        for to, v in zip(out, operands, strict=True):
            to[..., i : i + rows] = F.linear(v, size)
        if extent is not None:
            largest.append(extent[0])
            subnormal = subnormal or extent[1]
    most = math.nan if any(map(math.isnan, largest)) else max(largest)  # max alone may lose a NaN
    return out[0], None if y is None else out[1], (most, subnormal) if look else None


def both_vary(
    ctx: Context, x: Interval, y: Interval, terms: int, product: Callable[[Tensor, Tensor], Tensor]
) -> Interval:
    """Bound a bilinear operator of two intervals: |x y - cx cy| <= rx (|cy| + ry) + |cx| ry (four products).

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
    """Return max |value| over some axes, which are kept: (B, C, 1, ...)."""
    return torch.amax(value, dim=dims, keepdim=True)
