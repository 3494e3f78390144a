"""Rows of coefficients back through lines, along vectors and to a box, summed in float64: compiled, or None.

Rows (S, B, *value) of B examples in float32. Products of two floats are exact in float64, so every sum of n of them is
wrong by at most gamma(n + 4) of float64, whatever the number of threads. The caller falls back to PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.native.build import library
from surebound.native.rows import at, like, sizes

#: From so many coefficients on it is worth looking for a compiler.
WORTH = 1 << 15


def pull(a: Tensor, lower: Tensor | None, upper: Tensor, top: Tensor) -> tuple[Tensor, Tensor] | None:
    """upper a where a > 0, lower a elsewhere (None: upper a); and sums (S, B) of max(a, 0) top.

    lower: (B, *value) or (S, B, *value). The result lies as a does, or with channels innermost if the slopes do.
    """
    slopes = [v for v in (lower, upper, top) if v is not None]
    if not _worth(a, *slopes) or (upper.shape, top.shape) != (a.shape[1:], a.shape[1:]):
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
    each = upper.numel() if lower is not None and lower.dim() == a.dim() else 0
    failed = kernels.surebound_wide_pull(
        a.data_ptr(), at(lower), each, upper.data_ptr(), top.data_ptr(), *sizes(a), planes, back.data_ptr(),
        offset.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return None if failed else (back, offset)


def dot(a: Tensor, plain: Tensor | None, absolute: Tensor | None) -> Tensor | None:
    """a.plain + |a|.absolute (S, B); plain (1, *value) or with 1 where it is the same, absolute (B, *value)."""
    if not _worth(a, *(v for v in (plain, absolute) if v is not None)):
        return None
    innermost = _innermost(a)
    kernels = library() if innermost or a.is_contiguous() else None
    if kernels is None:
        return None
    if plain is not None:
        plain = _laid(plain.expand(1, *a.shape[2:]), innermost)
    if absolute is not None:
        absolute = _laid(absolute.expand(a.shape[1:]), innermost)
    out = a.new_empty(a.shape[:2], dtype=torch.float64)
    kernels.surebound_wide_dot(
        a.data_ptr(), at(plain), at(absolute), *sizes(a), out.data_ptr(), torch.get_num_threads()
    )
    return out


def maximum(a: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor] | None:
    """The largest a.x over a finite box [lower, upper] (B, *value), and |a|.max|x|: (S, B) each."""
    if not _worth(a, lower, upper):
        return None
    innermost = _innermost(a)
    kernels = library() if innermost or a.is_contiguous() else None
    if kernels is None:
        return None
    lower, upper = _laid(lower, innermost), _laid(upper, innermost)
    best, size = (a.new_empty(a.shape[:2], dtype=torch.float64) for _ in range(2))
    kernels.surebound_wide_maximum(
        a.data_ptr(), lower.data_ptr(), upper.data_ptr(), *sizes(a), best.data_ptr(), size.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return best, size


def relu_lines(
    lower: Tensor, upper: Tensor, sound: bool, least: float, factor: float, extra: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    """Lines of a ReLU between bounds (B, *value): see ``rules.relax_relu``, whose numbers these are.

    Slope of the chord, lower slope, intercept, where the sign is open, and the largest |bound| (B,). None also where
    some number is not finite.
    """
    same = lower.dim() > 1 and lower.stride() == upper.stride()
    dense = lower.is_contiguous() or (lower.dim() == 4 and lower.movedim(1, -1).is_contiguous())
    kernels = library() if same and dense and _plain(lower, upper) else None
    if kernels is None:
        return None
    chord, below, top = (torch.empty_like(lower) for _ in range(3))
    unstable = torch.empty_like(lower, dtype=torch.bool)
    largest = lower.new_empty(lower.shape[0])
    odd = kernels.surebound_relu_lines(
        lower.data_ptr(), upper.data_ptr(), lower.shape[0], lower[0].numel(), sound, least, factor, extra,
        chord.data_ptr(), below.data_ptr(), top.data_ptr(), unstable.data_ptr(), largest.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return None if odd else (chord, below, top, unstable, largest)


def _worth(a: Tensor, *others: Tensor) -> bool:
    """Rows of several values, and ``_plain``?"""
    return a.dim() > 2 and _plain(a, *others)


def _plain(first: Tensor, *others: Tensor) -> bool:
    """Enough of them, float32 in main memory, no gradients wanted?"""
    return (
        first.numel() >= WORTH
        and not torch.is_grad_enabled()
        and all(v.dtype == torch.float32 and v.device.type == "cpu" for v in (first, *others))
    )


def _innermost(a: Tensor) -> bool:
    """Rows (S, B, C, H, W) with channels side by side in memory, and so not plane by plane?"""
    return a.dim() == 5 and not a.is_contiguous() and a.movedim(2, -1).is_contiguous()


def _laid(value: Tensor, innermost: bool) -> Tensor:
    """A tensor whose memory holds the value (..., C, H, W) in the given order; its shape means nothing."""
    return (value.movedim(-3, -1) if innermost else value).contiguous()
