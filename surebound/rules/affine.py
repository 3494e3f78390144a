"""What all affine operators share: two applications and the rounding that they pay (docs/soundness.md, Lemma 1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.interval import Interval
from surebound.native import ends
from surebound.numerics import AffineRounding, extent_of_sizes, has_subnormal, per_example, tiny
from surebound.rules.registry import Context, Sizes

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
    *,
    stacks: bool = False,
) -> Interval:
    """Interval bounds of ``product``, linear in x with ``outputs`` rows of ``terms`` summands.

    ``stacks``: does it treat every entry of the first axis alone, so that more of them can be stacked?
    """
    rounding = AffineRounding.of(terms, x.dtype, ctx.soundness)
    if not isinstance(bias, Interval):
        if stacks and ctx.sizes is not None and not (rounding.is_free or _trains(weight, x.lower, x.upper)):
            return _with_sizes(ctx.sizes, x, weight, bias, terms, outputs, product, rounding)
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


def _flushed(terms: int, size: Tensor, rate: float = 1.0) -> Tensor:
    """What flushing subnormal weights to zero may lose: tiny |x| per term, |x| <= 2 rate size, with room for more."""
    return 16 * terms * tiny(size.dtype) * rate * size.max()


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

    Paying for underflow after the product, and scaling the smaller factor of |A| r, saves passes.
    """
    center_in, radius_in, factor = x.consume_center() if ctx.owned else x.scaled_center()
    center = product(center_in, weight, bias)
    paid = rounding.on_center / factor
    if not rounding.is_free:
        if ctx.owned:
            radius_in = radius_in.add_(center_in.abs_(), alpha=paid)
        else:
            radius_in = torch.add(radius_in, center_in.abs(), alpha=paid)
    del center_in
    scale = rounding.on_radius * factor
    if product is F.linear and scale != 1:  # a matrix is larger than a vector, a kernel smaller than an image
        owned = ctx.owned or not (rounding.is_free or radius_in.requires_grad)
        radius_in, scale = radius_in.mul_(scale) if owned else radius_in * scale, 1.0

    def after(largest: float, subnormal: bool) -> Tensor:
        """What is added to |A| r: rounding of the bias, underflow, and subnormal weights that hardware may flush."""
        extra = _extra(rounding, weight, bias, outputs) + rounding.after(terms, largest)
        return extra + _flushed(terms, radius_in, 1 / paid) if subnormal else extra

    if product is F.linear and by_rows(radius_in, weight):
        radius, largest, subnormal = magnitude_by_rows(radius_in, weight, look=not rounding.is_free)
        if not rounding.is_free:
            radius = radius + after(largest, subnormal)
    else:
        size = weight.abs()  # (out, ...)
        extra = None if rounding.is_free else after(*extent_of_sizes(size))
        radius = product(radius_in, size if scale == 1 else size.mul_(scale), extra)
    return Interval.around(center, rounding.guarded(radius))


def _with_sizes(
    sizes: Sizes,
    x: Interval,
    weight: Tensor,
    bias: Tensor | None,
    terms: int,
    outputs: int,
    product: Product,
    rounding: AffineRounding,
) -> Interval:
    """``_with_constant_bias``, and |A| max|x| from the same product: |A| is made and read once for both."""
    center_in, both, sizes.entry = _entry(x, rounding)
    center = product(center_in, weight, bias)

    def after(largest: float, subnormal: bool) -> Tensor:
        extra = _extra(rounding, weight, bias, outputs) + rounding.after(terms, largest)
        return extra + _flushed(terms, both) if subnormal else extra

    if product is F.linear and by_rows(both, weight):
        out, largest, subnormal = magnitude_by_rows(both, weight, look=True)
        extra = after(largest, subnormal)
        out = out.add_(extra)
    else:
        size = weight.abs()
        largest, subnormal = extent_of_sizes(size)
        extra = after(largest, subnormal)
        out = product(both, size, extra)
    radius, sizes.product = out[: center_in.shape[0]], out[center_in.shape[0] :]
    # What |A| multiplies is below 8 max|x| whatever gamma is, and a sum is below twice what it should be.
    at_most = 16 * terms * largest * _largest(sizes.entry) + 2 * _largest(extra)
    return Interval.around(center, rounding.guarded(radius, at_most))


def _largest(value: Tensor) -> float:
    return float(value.amax()) if value.numel() else 0.0


def _entry(x: Interval, rounding: AffineRounding) -> tuple[Tensor, Tensor, Tensor]:
    """The centre (B, *in); stacked (2B, *in) what |A| multiplies for the radius, and max |x|; its largest (B,)."""
    quick = None if x.centered else ends.entry(x.lower, x.upper, rounding.on_center, rounding.on_radius)
    if quick is not None:
        return quick
    center, radius, factor = x.scaled_center()
    paid = torch.add(radius, center.abs(), alpha=rounding.on_center / factor)
    size = x.magnitude
    return center, torch.cat((paid.mul_(rounding.on_radius * factor), size)), per_example(size)


def _trains(*values: Tensor) -> bool:
    """Are gradients wanted?"""
    return torch.is_grad_enabled() and any(v.requires_grad for v in values)


def by_rows(x: Tensor, weight: Tensor) -> bool:
    """Is a matrix too large to hold its absolute values at a time, and need nobody keep them for gradients?"""
    return weight.numel() > BLOCK and not _trains(x, weight)


def magnitude_by_rows(x: Tensor, weight: Tensor, *, look: bool) -> tuple[Tensor, float, bool]:
    """x (..., in) times |weight| (out, in), a few rows of absolute values at a time; if ``look``, their extent too."""
    rows = max(1, BLOCK // weight.shape[1])
    block = weight.new_empty(rows, weight.shape[1])
    out = x.new_empty(*x.shape[:-1], weight.shape[0])
    largest, subnormal = 0.0, False
    for i in range(0, weight.shape[0], rows):
        part = weight.detach()[i : i + rows]
        size = torch.abs(part, out=block[: len(part)])
        out[..., i : i + rows] = F.linear(x, size)
        if look:
            high, small = extent_of_sizes(size)
            largest, subnormal = max(largest, high), subnormal or small
    return out, largest, subnormal


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
