"""Rows of coefficients back through lines, along vectors and to a box, summed in float64: compiled, or None.

Rows (S, B, *value) of B examples in float32. Products of two floats are exact in float64, so every sum of n of them is
wrong by at most gamma(n + 4) of float64, whatever the number of threads; sums of absolute values besides by at most
gamma(``NARROW``) of float32. The caller falls back to PyTorch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.kernels.build import library
from surebound.kernels.ends import WORTH
from surebound.kernels.rows import at, like, sizes

#: Sums of |a| w, w >= 0, have runs of 32 products in float32 (wide.c, RUN), and the runs in float64.
NARROW = 40


@dataclass(frozen=True)
class Price:
    """What coefficients a (S, B, *value) cost: a.plain + |a|.absolute + fixed."""

    plain: Tensor | None  # (1, *value), or with 1 where it is the same
    absolute: Tensor | None = None  # (B, *value), >= 0
    fixed: Tensor | None = None  # (B,), float64


def pull(
    a: Tensor, lower: Tensor | None, upper: Tensor, top: Tensor, more: Tensor, price: Price | None = None
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """upper a where a > 0, lower a elsewhere (None: upper a); more + sums of max(a, 0) top; the first one's ``price``.

    lower: (B, *value) or (S, B, *value); more: (B,) in float64; sums and prices: (S, B) in float64. The result lies as
    a does, or with channels innermost if the slopes do.
    """
    price, wanted = price or Price(None), price is not None
    given = [v for v in (lower, upper, top, price.plain, price.absolute) if v is not None]
    if not _worth(a, *given) or (upper.shape, top.shape) != (a.shape[1:], a.shape[1:]):
        return None
    if not all(_per_example(v, a) for v in (more, price.fixed)):
        return None
    if lower is not None and lower.shape not in (a.shape, a.shape[1:]):
        return None
    innermost, planes = _innermost(a), 0
    # Plane by plane, and the slopes are not: the adjoints like them as the slopes.
    if a.is_contiguous() and a.dim() == 5 and not upper.is_contiguous():
        innermost, planes = True, a.shape[2]
    kernels = library() if innermost or a.is_contiguous() else None
    if kernels is None:
        return None
    upper, top = _laid(upper, innermost), _laid(top, innermost)
    lower = None if lower is None else _laid(lower, innermost)
    back = like(a, innermost)
    offset = a.new_empty(a.shape[:2], dtype=torch.float64)
    priced = torch.empty_like(offset) if wanted else None
    cost = _written_out(price, a, innermost)
    each = upper.numel() if lower is not None and lower.dim() == a.dim() else 0
    failed = kernels.surebound_wide_pull(
        a.data_ptr(), at(lower), each, upper.data_ptr(), top.data_ptr(), more.contiguous().data_ptr(),
        *(at(part) for part in cost), *sizes(a), planes, back.data_ptr(), offset.data_ptr(), at(priced),
        torch.get_num_threads(),
    )  # fmt: skip
    return None if failed else (back, offset, priced)


def dot(a: Tensor, price: Price) -> Tensor | None:
    """The price (S, B) in float64."""
    given = [v for v in (price.plain, price.absolute) if v is not None]
    if not (_worth(a, *given) and _per_example(price.fixed, a)):
        return None
    innermost = _innermost(a)
    kernels = library() if innermost or a.is_contiguous() else None
    if kernels is None:
        return None
    cost = _written_out(price, a, innermost)
    out = a.new_empty(a.shape[:2], dtype=torch.float64)
    kernels.surebound_wide_dot(
        a.data_ptr(), *(at(part) for part in cost), *sizes(a), out.data_ptr(), torch.get_num_threads()
    )
    return out


def upper(a: Tensor, lower: Tensor, upper: Tensor, offset: Tensor, rate: float) -> Tensor | None:
    """At least the largest a.x + offset over a finite box [lower, upper] (B, *value): (S, B), the next float32.

    offset (S, B) in float64. rate: what sums of so many products may lose, twice; paid of |a|.max|x| + |offset|.
    """
    if not _worth(a, lower, upper) or (offset.shape, offset.dtype) != (a.shape[:2], torch.float64):
        return None
    if (lower.shape, upper.shape) != (a.shape[1:], a.shape[1:]):
        return None
    innermost = _innermost(a)
    kernels = library() if innermost or a.is_contiguous() else None
    if kernels is None:
        return None
    lower, upper = _laid(lower, innermost), _laid(upper, innermost)
    offset, best = offset.contiguous(), a.new_empty(a.shape[:2])
    kernels.surebound_wide_upper(
        a.data_ptr(), lower.data_ptr(), upper.data_ptr(), offset.data_ptr(), *sizes(a), rate, best.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return best


def sum_up(terms: Sequence[Tensor], rate: float, under: float) -> Tensor | None:
    """The sum of terms of one shape, and rate times that of their sizes, and under; all in float64."""
    many = len(terms) * terms[0].numel() >= WORTH and not torch.is_grad_enabled()
    alike = all(
        t.shape == terms[0].shape and t.dtype == torch.float64 and t.device.type == "cpu" for t in terms
    )
    kernels = library() if many and alike else None
    if kernels is None:
        return None
    terms = [t.contiguous() for t in terms]
    out = torch.empty_like(terms[0])
    where = (ctypes.c_void_p * len(terms))(*(t.data_ptr() for t in terms))
    kernels.surebound_sum_up(
        where, len(terms), out.numel(), rate, under, out.data_ptr(), torch.get_num_threads()
    )
    return out


def grow(
    size: Tensor, bias: Tensor | None, x: Tensor, rate: float, under: float, limit: float
) -> Tensor | None:
    """size = rate (size + bias) + under (1 + max size + x), in its own memory; the last summand, (B,) in float64.

    size (B, *out), bias (1, *out) or with 1 where it is the same, x (B,), all >= 0; the maximum is that of an example.
    Infinite where size + bias is beyond the limit.
    """
    kernels = library() if _dense(size) and x.is_contiguous() and _plain(size, x) else None
    if kernels is None:
        return None
    if bias is None:  # a choice in the loop costs more than zeros
        bias = size.new_zeros(size[0].numel())
    else:
        bias = _laid(bias.expand(1, *size.shape[1:]), not size.is_contiguous())
    added = size.new_empty(size.shape[0], dtype=torch.float64)
    kernels.surebound_grow(
        size.data_ptr(), bias.data_ptr(), x.data_ptr(), size.shape[0], size[0].numel(), rate, under, limit,
        added.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return added


def relu_lines(
    lower: Tensor, upper: Tensor, sound: bool, least: float, factor: float, extra: float, under: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    """Lines of a ReLU between bounds (B, *value): see ``rules.relax.relu``, whose numbers these are.

    Slope of the chord, lower slope, intercept, where the sign is open, and under (1 + the largest |bound|) (B,) in
    float64. None also where some number is not finite.
    """
    alike = _dense(lower) and lower.stride() == upper.stride()
    kernels = library() if alike and _plain(lower, upper) else None
    if kernels is None:
        return None
    chord, below, top = (torch.empty_like(lower) for _ in range(3))
    unstable = torch.empty_like(lower, dtype=torch.bool)
    absolute = lower.new_empty(lower.shape[0], dtype=torch.float64)
    odd = kernels.surebound_relu_lines(
        lower.data_ptr(), upper.data_ptr(), lower.shape[0], lower[0].numel(), sound, least, factor, extra, under,
        chord.data_ptr(), below.data_ptr(), top.data_ptr(), unstable.data_ptr(), absolute.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return None if odd else (chord, below, top, unstable, absolute)


def _worth(a: Tensor, *others: Tensor) -> bool:
    """Rows of several values, and ``_plain``?"""
    return a.dim() > 2 and _plain(a, *others)


def _dense(value: Tensor) -> bool:
    """Examples (B, *value) one after the other, each without gaps?"""
    innermost = value.dim() == 4 and value.movedim(1, -1).is_contiguous()
    return value.dim() > 1 and (innermost or value.is_contiguous())


def _plain(first: Tensor, *others: Tensor) -> bool:
    """Enough of them, float32 in main memory, no gradients wanted?"""
    return (
        first.numel() >= WORTH
        and not torch.is_grad_enabled()
        and all(v.dtype == torch.float32 and v.device.type == "cpu" for v in (first, *others))
    )


def _per_example(value: Tensor | None, a: Tensor) -> bool:
    """One number in float64 for each example, or none?"""
    return value is None or (value.shape == a.shape[1:2] and value.dtype == torch.float64)


def _innermost(a: Tensor) -> bool:
    """Rows (S, B, C, H, W) with channels side by side in memory, and so not plane by plane?"""
    return a.dim() == 5 and not a.is_contiguous() and a.movedim(2, -1).is_contiguous()


def _written_out(price: Price, a: Tensor, innermost: bool) -> tuple[Tensor | None, ...]:
    """The parts of a price, the first two written out for every entry, as ``_laid``."""
    each = ((price.plain, 1), (price.absolute, a.shape[1]))
    parts = (None if v is None else _laid(v.expand(n, *a.shape[2:]), innermost) for v, n in each)
    return (*parts, None if price.fixed is None else price.fixed.contiguous())


def _laid(value: Tensor, innermost: bool) -> Tensor:
    """A tensor whose memory holds the value (..., C, H, W) in the given order; its shape means nothing."""
    return (value.movedim(-3, -1) if innermost else value).contiguous()
