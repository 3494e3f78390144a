"""Bounds of entries of a value inside a network by backward passes: a row of coefficients for each end of each."""

from __future__ import annotations

import math

import torch
import torch.utils.checkpoint
from torch import Tensor

from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.steps import AffineStep
from surebound.interval import Interval
from surebound.numerics import by_rows

#: Arrays of the size of the largest value that live at the same time in a pass without gradients.
LIVE = 6


def rows_at_once(relaxed: Relaxed, source: str, memory: int) -> int:
    """Count the rows of coefficients (specifications times boxes) that a pass from a value can take in this memory."""
    entries = max(math.prod(box.shape[1:]) for box in relaxed.bounds.values())
    return max(2, memory // (LIVE * relaxed.dtype_of(source).itemsize * max(1, entries)))


def _bounded(relaxed: Relaxed, source: str, rows: Tensor, offset: Tensor, priced: dict[str, Tensor]) -> Tensor:
    """Bound rows (R, B, *value) from above: (B, R); with gradients, computed again in the backward pass, because memory
    is for one block, not for all of them."""

    def bound() -> Tensor:
        return relaxed.upper(relaxed.pull(source, rows, offset, priced=priced)).t()

    if not torch.is_grad_enabled():
        return bound()
    again: Tensor = torch.utils.checkpoint.checkpoint(bound, use_reentrant=False, preserve_rng_state=False)
    return again


def _priced(relaxed: Relaxed, source: str, index: Tensor) -> dict[str, Tensor]:
    """Return what the first affine call adds to the offsets of rows that are 0 but for one entry, without a product."""
    step = relaxed.steps.get(source)
    if torch.is_grad_enabled() or not isinstance(step, AffineStep) or step.price is None:
        return {}
    return {source: step.price_of_entries(index, relaxed.bounds[source].shape)}


def entries(relaxed: Relaxed, source: str, where: Tensor, block: int) -> Interval:
    """Bound the marked entries, ``block`` of them per example at a time; infinite elsewhere."""
    flat = by_rows(where)
    count = int(flat.sum(1).max()) if flat.numel() else 0
    order = flat.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]  # (B, count)
    like = relaxed.bounds[source].lower
    lower = by_rows(torch.full_like(like, -math.inf))
    upper = by_rows(torch.full_like(like, math.inf))
    for first in range(0, count, block):
        index = order[:, first : first + block]  # (B, R)
        rows = like.new_zeros(index.shape[1], *flat.shape, dtype=relaxed.dtype_of(source))
        rows = rows.scatter_(2, index.t().unsqueeze(2), 1.0)
        rows = torch.cat([rows, -rows]).reshape(-1, *like.shape)  # (2R, B, *value)
        offset = like.new_zeros(rows.shape[:2], dtype=torch.float64)
        best = _bounded(relaxed, source, rows, offset, _priced(relaxed, source, index))  # (B, 2R)
        upper = upper.scatter(1, index, best[:, : index.shape[1]])
        lower = lower.scatter(1, index, -best[:, index.shape[1] :])
    return Interval(lower.reshape(like.shape), upper.reshape(like.shape))
