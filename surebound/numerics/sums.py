"""Sums in float64 of arrays in any dtype, and their rounding error bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from surebound.numerics.slack import slightly_up
from surebound.numerics.units import gamma, tiny


def per_example(size: Tensor) -> Tensor:
    """Return the largest entry of each example (B, ...): (B,). Not by flattening, which copies some memory orders."""
    return size.amax(dim=tuple(range(1, size.dim()))) if size.dim() > 1 else size


def by_rows(value: Tensor) -> Tensor:
    """Reshape (B, ...) to (B, n); also one number per example, (B,), which has no second axis to flatten from.

    >>> import torch
    >>> by_rows(torch.zeros(4)).shape, by_rows(torch.zeros(4, 2, 3)).shape
    (torch.Size([4, 1]), torch.Size([4, 6]))
    """
    return value.flatten(1) if value.dim() > 1 else value.unsqueeze(1)


#: Entries of an array that a blocked loop works on at a time: a few of them fit a core's cache.
CACHE_ENTRIES = 1 << 16


def dot(a: Tensor, v: Tensor) -> Tensor:
    """Sum a (S, B, *n) times v (B or 1, *n) over all but the first two axes: (S, B) in float64.

    Runs of the last axes are summed in a's own dtype, because widening whole coefficient arrays costs as much as
    a layer; ``dot_rounding`` bounds the error. v may have size 1 along those runs. Without gradients the work
    is done in blocks that stay in the cache.
    """
    return _blocked_dot(a, v, absolute=False)


def abs_dot(a: Tensor, v: Tensor) -> Tensor:
    """Sum |a| times v >= 0, as ``dot``."""
    return _blocked_dot(a, v, absolute=True)


def _blocked_dot(a: Tensor, v: Tensor, *, absolute: bool) -> Tensor:
    if torch.is_grad_enabled() or a.numel() <= 2 * CACHE_ENTRIES:
        return _dot(a, v, absolute)
    result = a.new_empty(a.shape[:2], dtype=torch.float64)
    for at in cache_blocks(a.shape):
        result[at] = _dot(a[at], v if v.shape[0] == 1 else v[at[1]], absolute)
    return result


def cache_blocks(shape: torch.Size) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of the first two axes of an array (S, B, *n), each with about CACHE_ENTRIES entries."""
    specs, batch = shape[:2]
    each = max(1, math.prod(shape[2:]))
    examples = max(1, min(batch, CACHE_ENTRIES // each))
    rows = max(1, min(specs, CACHE_ENTRIES // (each * examples)))
    for b in range(0, batch, examples):
        for s in range(0, specs, rows):
            yield slice(s, s + rows), slice(b, b + examples)


def _dot(a: Tensor, v: Tensor, absolute: bool) -> Tensor:
    if a.dim() == 2:
        return (a.abs() if absolute else a).double() * v.double()
    run = _run_axes(a.shape)
    if not run or a.dtype == torch.float64:
        wide = (a.abs() if absolute else a).flatten(2).double()
        sums: Tensor = torch.linalg.vecdot(wide, v.double().expand(a.shape[1:]).flatten(1))
        return sums
    axes = tuple(range(-run, 0))
    if v.shape[-run:].numel() == 1:
        sums = ((a.abs() if absolute else a).sum(axes) * v.squeeze(axes)).double()
    else:
        product = a * v
        sums = (product.abs() if absolute else product).sum(axes).double()
    return sums.flatten(2).sum(2) if sums.dim() > 2 else sums


def _run_axes(shape: torch.Size) -> int:
    """Count the last axes of (S, B, *n) that are summed narrowly: until 32 summands, never all axes of n."""
    count, length = 0, 1
    while length < 32 and len(shape) - count > 3:
        count += 1
        length *= shape[-count]
    return count


def dot_rounding(shape: torch.Size, dtype: torch.dtype) -> float:
    """Bound |dot(a, v) - a.v| <= dot_rounding * |a|.|v| + underflow, for v (B, *n) of this shape."""
    run = _run_axes(torch.Size((1, *shape)))
    narrow = gamma(math.prod(shape[-run:]) + 2, dtype) if run and dtype != torch.float64 else 0.0
    return slightly_up(narrow + gamma(math.prod(shape[1:]) + 4, torch.float64))


def add_up(a: Tensor, b: Tensor) -> Tensor:
    """Return at least a + b, in float64."""
    total = a + b
    return total + (total.abs() * 2.0**-52 + tiny(torch.float64))


def sum_rounding(n: int) -> tuple[float, float]:
    """Bound the rounding error of a float64 sum of n numbers: relative to the sum of their sizes, and absolute."""
    # n - 1 roundings of the sum, one of adding what is paid for them, and room for those of the payment itself.
    return gamma(n + 4, torch.float64), 2 * n * tiny(torch.float64)


def sum_up(terms: Tensor) -> Tensor:
    """Return at least the sum of float64 terms over the first axis."""
    rate, under = sum_rounding(terms.shape[0])
    return terms.abs().sum(0).mul_(rate).add_(under).add_(terms.sum(0))
