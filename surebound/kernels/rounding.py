"""What rounding error bounds of products and sums need of bounds and weights, in one sweep over memory each."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from surebound import numerics
from surebound.kernels.build import Entry
from surebound.kernels.ends import WORTH
from surebound.kernels.kernel import is_dense, is_float32, kernel
from surebound.numerics import extent_of_sizes, per_example, sum_rounding, tiny


def _sizes(weight: Tensor, to: Tensor | None = None) -> tuple[Tensor, float, bool]:
    size = weight.abs() if to is None else torch.abs(weight, out=to)
    return size, *extent_of_sizes(size)


def _to_fits(weight: Tensor, to: Tensor | None = None) -> bool:
    return to is None or (to.stride() == weight.stride() and to.shape == weight.shape and is_float32(to))


@kernel(reference=_sizes, alike="weight", fits=_to_fits, worth=WORTH)
def sizes(run: Entry, weight: Tensor, to: Tensor | None = None) -> tuple[Tensor, float, bool]:
    """Return |weight|, in ``to`` if there is one; its largest; and whether there are subnormal numbers."""
    to, most = torch.empty_like(weight) if to is None else to, weight.new_empty(())
    small = run(weight, weight.numel(), tiny(weight.dtype), to, most)
    return to, float(most), bool(small)


def _paid(center: Tensor, radius: Tensor, rate: float, owned: bool) -> Tensor:
    if owned:
        return radius.add_(center.abs_(), alpha=rate)
    return torch.add(radius, center.abs(), alpha=rate)


@kernel(reference=_paid, alike="center radius", worth=WORTH)
def paid(run: Entry, center: Tensor, radius: Tensor, rate: float, owned: bool) -> Tensor:
    """Return radius + rate |center|; in the radius's memory, and overwriting the centre, if both are ``owned``."""
    to = radius if owned else torch.empty_like(radius)
    run(center, radius, radius.numel(), rate, to)
    return to


def _entry(lower: Tensor, upper: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    width = upper - lower
    center = torch.add(lower, width, alpha=0.5)
    clear, magnitude = torch.maximum(lower, upper.neg()), lower.neg().clamp(min=upper)
    pays = _paid(center, width, rate, owned=False)
    return center, pays, clear if bool(clear.any()) else None, per_example(magnitude)


@kernel(
    reference=_entry,
    alike="lower upper",
    fits=lambda lower, upper, rate: lower.dim() > 1,
    worth=WORTH,
)
def entry(run: Entry, lower: Tensor, upper: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return what a product reads of bounds (B, ...): the centre; the width + rate |centre|; max(lower, -upper).

    The third is None if 0 throughout. And the largest |x| of each example (B,).
    """
    center, width, clear = (torch.empty_like(lower) for _ in range(3))
    most = lower.new_empty(lower.shape[0])
    count = run(lower, upper, lower.shape[0], lower[0].numel(), rate, center, width, clear, most)
    return center, width, clear if count else None, most


def _sum_up(terms: Sequence[Tensor]) -> Tensor:
    return numerics.sum_up(torch.stack(list(terms)))


def _terms_fit(terms: Sequence[Tensor]) -> bool:
    many = len(terms) * terms[0].numel() >= WORTH and not torch.is_grad_enabled()
    return many and all(t.shape == terms[0].shape and t.dtype == torch.float64 and t.is_cpu for t in terms)


@kernel(reference=_sum_up, fits=_terms_fit)
def sum_up(run: Entry, terms: Sequence[Tensor]) -> Tensor:
    """Return at least the sum of terms of one shape, all in float64 (``numerics.sum_rounding``)."""
    terms = [t.contiguous() for t in terms]
    out = torch.empty_like(terms[0])
    where = (ctypes.c_void_p * len(terms))(*(t.data_ptr() for t in terms))
    run(where, len(terms), out.numel(), *sum_rounding(len(terms)), out)
    return out


def _grow(
    size: Tensor, bias: Tensor | None, x: Tensor, rate: float, under: float, limit: float
) -> tuple[Tensor, Tensor]:
    size = size if bias is None else size + bias
    added = under * (1 + per_example(size).double() + x.double())
    # Not in place: entries that were repeated share their memory.
    grown = size * rate + added.to(size.dtype).reshape(-1, *([1] * (size.dim() - 1)))
    return torch.where(size > limit, math.inf, grown), added


def _grow_fits(size: Tensor, bias: Tensor | None, x: Tensor, rate: float, under: float, limit: float) -> bool:
    enough = size.dim() > 1 and size.numel() >= WORTH and not torch.is_grad_enabled()
    return enough and is_dense(size) and x.is_contiguous() and is_float32(size, bias, x)


@kernel(reference=_grow, fits=_grow_fits)
def grow(
    run: Entry, size: Tensor, bias: Tensor | None, x: Tensor, rate: float, under: float, limit: float
) -> tuple[Tensor, Tensor]:
    """Return rate (size + bias) + added, perhaps in the memory of size, and added = under (1 + max size + x) (B,).

    size (B, *out), bias (1, *out) or with 1 where it is the same, x (B,), all >= 0; the maximum is that of an example;
    ``added`` is in float64. Infinite where size + bias is beyond the limit: there a sum overflows in some order.
    """
    if bias is None:  # a choice in the loop costs more than zeros
        bias = size.new_zeros(size[0].numel())
    else:
        bias = bias.expand(1, *size.shape[1:])
        bias = (bias if size.is_contiguous() else bias.movedim(1, -1)).contiguous()
    added = size.new_empty(size.shape[0], dtype=torch.float64)
    run(size, bias, x, size.shape[0], size[0].numel(), rate, under, limit, added)
    return size, added
