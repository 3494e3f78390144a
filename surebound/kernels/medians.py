"""The middle values over columns: by a network of comparators for many units at a time, or by sorting."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from surebound.kernels.build import Entry
from surebound.kernels.kernel import Declined, kernel

#: The compiled pass holds so many columns, and numbers them by a byte.
MOST_COLUMNS = 128


def positions(count: int) -> tuple[int, ...]:
    """Return the places in order, from 1, of the one or two values in the middle."""
    return ((count + 1) // 2,) if count % 2 else (count // 2, count // 2 + 1)


@lru_cache
def selection_network(count: int) -> tuple[tuple[int, int, bool, bool], ...]:
    """Return comparators (i, j, keep the smaller in i, keep the larger in j) that put middle values in their places.

    Batcher's odd-even merge sort, without what the middle does not depend on.
    """
    size, pairs = 1 << (count - 1).bit_length(), []
    p = 1
    while p < size:
        k = p
        while k >= 1:
            for start in range(k % p, size - k, 2 * k):
                for i in range(start, start + min(k, size - start - k)):
                    if i // (2 * p) == (i + k) // (2 * p) and i + k < count:
                        pairs.append((i, i + k))
            k //= 2
        p *= 2
    wanted, kept = {j - 1 for j in positions(count)}, []
    for i, j in reversed(pairs):
        if i in wanted or j in wanted:
            kept.append((i, j, i in wanted, j in wanted))
            wanted |= {i, j}
    return tuple(reversed(kept))


@lru_cache
def _integers(rows: tuple[tuple[int, ...], ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def _middle(columns: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    at = positions(columns.shape[0])
    values, places = columns.abs().sort(0)
    total = values[at[0] - 1 : at[-1]].sum(0)
    if wanted is not None:
        total.masked_fill_(~wanted, torch.inf)
    return total, places[at[0] - 1 : at[-1]]


@kernel(reference=_middle, plain="columns", fits=lambda columns, wanted=None: columns.shape[0] <= MOST_COLUMNS)
def middle(run: Entry, columns: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sum the one or two values in the middle of |columns| (K, B, n): (B, n); and find their columns (1 or 2, B, n).

    Infinite, and in any column, where it is not ``wanted`` (B, n), bool.
    """
    count, batch, size = columns.shape
    network, at = selection_network(count), tuple(j - 1 for j in positions(count))
    total = columns.new_empty(batch, size)
    places = columns.new_empty(len(at), batch, size, dtype=torch.uint8)
    given = None if wanted is None else wanted.contiguous()
    sizes = batch, count, size
    if run(columns, given, *sizes, _integers(network), len(network), _integers((at,)), len(at), total, places):
        raise Declined
    return total, places
