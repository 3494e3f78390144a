"""Backward passes of coefficients through lines, products with vectors, maxima over boxes; sums mostly in float64.

Rows (S, B, *value) of B examples in float32. Products of two floats are exact in float64, so every compiled sum of n of
them is wrong by at most gamma(n + 4) of float64, whatever the number of threads; sums of absolute values besides by
at most gamma(``NARROW``) of float32. What references sum may be wrong by ``numerics.dot_rounding``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.kernels.build import Entry
from surebound.kernels.ends import WORTH
from surebound.kernels.kernel import Declined, is_float32, kernel
from surebound.numerics import CACHE_ENTRIES, abs_dot, cache_blocks, covering, dot_rounding, round_up, tiny
from surebound.numerics import dot as narrow_dot

#: Sums of |a| w, w >= 0, have runs of 32 products in float32 (rows.c, RUN), and the runs in float64.
NARROW = 40


@dataclass(frozen=True)
class Price:
    """The vectors that coefficients a (S, B, *value) meet in an offset: a.plain + |a|.absolute + fixed."""

    plain: Tensor | None  # (1, *value), or with 1 where it is the same; or (B, *value)
    absolute: Tensor | None = None  # (B, *value), >= 0
    fixed: Tensor | None = None  # (B,), float64


def _dot(a: Tensor, price: Price) -> Tensor:
    total = torch.zeros(a.shape[:2], dtype=torch.float64, device=a.device)
    if price.plain is not None:
        total = total + narrow_dot(a, price.plain)
    if price.absolute is not None:
        total = total + abs_dot(a, price.absolute)
    return total if price.fixed is None else total + price.fixed


def _price_fits(a: Tensor, price: Price) -> bool:
    return _rows_fit(a, price.plain, price.absolute) and _per_example(price.fixed, a)


@kernel(reference=_dot, fits=_price_fits)
def dot(run: Entry, a: Tensor, price: Price) -> Tensor:
    """Return a.plain + |a|.absolute + fixed (S, B) of coefficients a in float64."""
    out = a.new_empty(a.shape[:2], dtype=torch.float64)
    plain, absolute, fixed = _written_out(price, a, _innermost(a))
    own = price.plain is not None and price.plain.shape[0] > 1
    run(a, plain, own, absolute, fixed, *_counts(a), out)
    return out


Pulled = tuple[Tensor, Tensor, Tensor | None]


def _pull(
    a: Tensor,
    lower: Tensor | None,
    upper: Tensor,
    bottom: Tensor | None,
    top: Tensor,
    more: Tensor,
    price: Price | None = None,
) -> Pulled:
    if torch.is_grad_enabled() or a.numel() <= 2 * CACHE_ENTRIES:
        back, offset = _pull_block(a, lower, upper, bottom, top)
    else:  # block by block, so that intermediate arrays stay in the cache
        back, offset = torch.empty_like(a), a.new_empty(a.shape[:2], dtype=torch.float64)
        per_row = lower is not None and lower.dim() == a.dim()
        for s, b in cache_blocks(a.shape):
            low = lower if lower is None else lower.expand(a.shape)[s, b] if per_row else lower[b]
            lowest = None if bottom is None else bottom[b]
            back[s, b], offset[s, b] = _pull_block(a[s, b], low, upper[b], lowest, top[b])
    return back, offset + more, None if price is None else dot(back, price)


def _pull_block(
    a: Tensor, lower: Tensor | None, upper: Tensor, bottom: Tensor | None, top: Tensor
) -> tuple[Tensor, Tensor]:
    positive = a.clamp(min=0)
    negative = a - positive
    # One of the two products is 0: no rounding in the sum.
    back = a * upper if lower is None else negative * lower + positive * upper
    offset = narrow_dot(positive, top)
    return back, offset if bottom is None else offset + narrow_dot(negative, bottom)


def _pull_fits(
    a: Tensor,
    lower: Tensor | None,
    upper: Tensor,
    bottom: Tensor | None,
    top: Tensor,
    more: Tensor,
    price: Price | None = None,
) -> bool:
    shaped = upper.shape == top.shape == a.shape[1:]
    if bottom is not None or not shaped or (lower is not None and lower.shape not in (a.shape, a.shape[1:])):
        return False
    shared = price is None or price.plain is None or price.plain.shape[0] == 1
    paid = price is None or _price_fits(a, price)
    return shared and paid and _rows_fit(a, lower, upper, top) and _per_example(more, a)


@kernel(reference=_pull, fits=_pull_fits)
def pull(
    run: Entry,
    a: Tensor,
    lower: Tensor | None,
    upper: Tensor,
    bottom: Tensor | None,
    top: Tensor,
    more: Tensor,
    price: Price | None = None,
) -> Pulled:
    """Take coefficients back through lines: upper a where a > 0, else lower a; return them, offset and their ``price``.

    Lines lower x + bottom and upper x + top (B, *value), lower also (S, B, *value). lower None: the same slope on both
    sides; bottom None: 0. The offset (S, B), in float64, is more (B,) + max(a, 0).top + min(a, 0).bottom. Compiled, the
    result lies as a does, or in NHWC order if the slopes do.
    """
    innermost, planes = _innermost(a), 0
    # Plane by plane, and the slopes are not: the adjoints like them as the slopes.
    if a.is_contiguous() and a.dim() == 5 and not upper.is_contiguous():
        innermost, planes = True, a.shape[2]
    back = _empty(a, innermost)
    offset = a.new_empty(a.shape[:2], dtype=torch.float64)
    priced = None if price is None else torch.empty_like(offset)
    cost = _written_out(price or Price(None), a, innermost)
    each = upper.numel() if lower is not None and lower.dim() == a.dim() else 0
    low = None if lower is None else _laid(lower, innermost)
    slopes = low, each, _laid(upper, innermost), _laid(top, innermost)
    if run(a, *slopes, more.contiguous(), *cost, *_counts(a), planes, back, offset, priced):
        raise Declined
    return back, offset, priced


Wanted = tuple[bool, bool, bool]


def _pull_backward(
    a: Tensor, g: Tensor, go: Tensor, lower: Tensor | None, upper: Tensor, top: Tensor, wanted: Wanted
) -> tuple[Tensor | None, ...]:
    go = go.to(a.dtype).reshape(*go.shape, *([1] * (a.dim() - 2)))
    g_up = g * upper
    g_a = torch.where(a > 0, torch.addcmul(g_up, go, top), g_up if lower is None else g * lower)
    positive = a.clamp(min=0)
    need_lower, need_upper, need_top = wanted
    g_lower = torch.sub(a, positive).mul_(g).sum(0) if need_lower else None
    g_upper = torch.mul(a if lower is None else positive, g).sum(0) if need_upper else None
    return g_a, g_lower, g_upper, positive.mul_(go).sum(0) if need_top else None


def _slopes_fit(
    a: Tensor, g: Tensor, go: Tensor, lower: Tensor | None, upper: Tensor, top: Tensor, wanted: Wanted
) -> bool:
    slopes = [v for v in (lower, upper, top) if v is not None]
    if not is_float32(a, g, *slopes) or any(v.shape != a.shape[1:] for v in slopes) or not a.numel():
        return False
    if all(v.is_contiguous() for v in slopes):
        return a.is_contiguous()
    inner = all(v.dim() == 4 and v.movedim(1, -1).is_contiguous() for v in slopes)
    return inner and (a.is_contiguous() or a.movedim(2, -1).is_contiguous())


@kernel(reference=_pull_backward, fits=_slopes_fit)
def pull_backward(
    run: Entry,
    a: Tensor,
    g: Tensor,
    go: Tensor,
    lower: Tensor | None,
    upper: Tensor,
    top: Tensor,
    wanted: Wanted,
) -> tuple[Tensor | None, ...]:
    """Return gradients of a and, as far as wanted, of lower, upper and top of ``pull`` (slopes (B, *value), bottom 0).

    From those g (S, B, *value) of the coefficients and go (S, B) of the offset.
    """
    last = not all(v is None or v.is_contiguous() for v in (lower, upper, top))
    planes = a.shape[2] if last and not a.movedim(2, -1).is_contiguous() else 0
    g_a = torch.empty_like(a)  # dense: the same strides
    found = [torch.empty_like(upper) if want else None for want in wanted]
    given = a, _laid(g, last), go.to(torch.float32).contiguous(), lower, upper, top, *_counts(a), planes
    if run(*given, g_a, *found):
        raise Declined
    return g_a, *found


def _upper(a: Tensor, lower: Tensor, upper: Tensor, offset: Tensor, rate: float) -> Tensor:
    positive, magnitude = a.clamp(min=0), torch.maximum(upper, -lower)
    best = _wide_dot(positive, upper) + _wide_dot(a - positive, lower) + offset
    size = abs_dot(a, magnitude) * covering(dot_rounding(magnitude.shape, a.dtype)) + offset.abs()
    return round_up(size.mul_(rate).add_(tiny(torch.float64)).add_(best), a.dtype)


def _wide_dot(a: Tensor, v: Tensor) -> Tensor:
    """Sum a (S, B, *n) times v (B, *n), all in float64: (S, B)."""
    if a.dim() == 2:
        return a.double() * v.double()
    sums: Tensor = torch.linalg.vecdot(a.flatten(2).double(), v.flatten(1).double())
    return sums


def _upper_fits(a: Tensor, lower: Tensor, upper: Tensor, offset: Tensor, rate: float) -> bool:
    shaped = lower.shape == upper.shape == a.shape[1:] and offset.shape == a.shape[:2]
    return shaped and offset.dtype == torch.float64 and _rows_fit(a, lower, upper)


@kernel(reference=_upper, fits=_upper_fits)
def upper(run: Entry, a: Tensor, lower: Tensor, upper: Tensor, offset: Tensor, rate: float) -> Tensor:
    """Return at least the largest a.x + offset over a finite box [lower, upper] (B, *value): (S, B), the next number.

    offset (S, B) in float64. rate: twice the sums' relative rounding error; it is added times |a|.max|x| + |offset|.
    """
    innermost, best = _innermost(a), a.new_empty(a.shape[:2])
    ends = _laid(lower, innermost), _laid(upper, innermost)
    run(a, *ends, offset.contiguous(), *_counts(a), rate, best)
    return best


def _largest_backward(a: Tensor, g: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    over = g.to(a.dtype).reshape(*g.shape, *([1] * (a.dim() - 2)))
    return torch.addcmul(center, a.sign(), radius).mul(over)


@kernel(
    reference=_largest_backward,
    plain="a center radius",
    fits=lambda a, g, center, radius: center.shape == radius.shape == a.shape[1:],
)
def largest_backward(run: Entry, a: Tensor, g: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """Return the gradient of a from that g (S, B) of a.center + |a|.radius."""
    g_a = torch.empty_like(a)
    run(a, g.to(torch.float32).contiguous(), center, radius, *_counts(a), g_a)
    return g_a


def _rows_fit(a: Tensor, *others: Tensor | None) -> bool:
    """Are these rows of several values, enough of them, in a known memory order, with no gradients wanted?"""
    return (
        a.dim() > 2
        and a.numel() >= WORTH
        and not torch.is_grad_enabled()
        and is_float32(a, *others)
        and (a.is_contiguous() or _innermost(a))
    )


def _per_example(value: Tensor | None, a: Tensor) -> bool:
    """Is it one float64 number for each example, or None?"""
    return value is None or (value.shape == a.shape[1:2] and value.dtype == torch.float64)


def _innermost(a: Tensor) -> bool:
    """Are rows (S, B, C, H, W) in NHWC order, and not also plane by plane?"""
    return a.dim() == 5 and not a.is_contiguous() and a.movedim(2, -1).is_contiguous()


def _written_out(price: Price, a: Tensor, innermost: bool) -> tuple[Tensor | None, ...]:
    """Return the vectors of a price, the first two written out for every entry, as ``_laid``."""
    shared = price.plain is None or price.plain.shape[0] == 1
    each = ((price.plain, 1 if shared else a.shape[1]), (price.absolute, a.shape[1]))
    parts = (None if v is None else _laid(v.expand(n, *a.shape[2:]), innermost) for v, n in each)
    return (*parts, None if price.fixed is None else price.fixed.contiguous())


def _laid(value: Tensor, innermost: bool) -> Tensor:
    """Return a tensor whose memory holds the value (..., C, H, W) in the given order; its shape means nothing."""
    return (value.movedim(-3, -1) if innermost else value).contiguous()


def _empty(a: Tensor, innermost: bool) -> Tensor:
    """Return room for rows (S, B, *value)."""
    if not innermost:
        return a.new_empty(a.shape)
    s, b, c, h, w = a.shape
    return a.new_empty(s, b, h, w, c).movedim(-1, 2)


def _counts(a: Tensor) -> tuple[int, int, int]:
    """Return S, B, n."""
    return a.shape[0], a.shape[1], a[0, 0].numel()
