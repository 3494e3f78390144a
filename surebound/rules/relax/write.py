"""Entries of one tensor replaced by those of another: every entry of the result is one of theirs, unchanged.

Which one is found by running the operator on the entries' numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import Soundness, gamma, several_sums, slightly_up, tiny
from surebound.rules.registry import Context
from surebound.rules.relax.lines import Index, Pulled


@dataclass(frozen=True)
class Written:
    """y[i] = the varying operands' entries, one after the other, at index[i]; a constant where that is the last."""

    shapes: tuple[torch.Size, ...]  # of the varying operands, (B, *operand)
    index: Tensor  # (B, *out); the number of all entries: none of them
    constant: Tensor  # (B, *out), 0 where an entry varies
    error: Tensor  # (B, *out), float64: rounding of the sum of coefficients that an entry read several times gets
    absolute: Tensor  # (B,), float64

    owes = 0.0

    @property
    def loose(self) -> bool:
        return False

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        sizes = [math.prod(shape[1:]) for shape in self.shapes]
        rows = a.reshape(*a.shape[:2], -1)
        flat = rows.new_zeros(*a.shape[:2], sum(sizes) + 1)
        flat = flat.scatter_add(2, self.index.reshape(rows.shape[1:]).expand(rows.shape), rows)
        back = torch.split(flat[..., :-1], sizes, 2)
        coefficients = tuple(
            part.reshape(*a.shape[:2], *shape[1:]) for part, shape in zip(back, self.shapes, strict=True)
        )
        wide = rows.double()
        fixed = wide * self.constant.double().reshape(rows.shape[1:])
        lost = wide.abs() * self.error.reshape(rows.shape[1:])
        rounding = several_sums(rows.shape[2] + 4, 2)
        paid = (fixed.abs().sum(2) + lost.sum(2)) * rounding
        return Pulled(coefficients, fixed.sum(2) + lost.sum(2) + paid + self.absolute)

    def select(self, index: Index) -> Written:
        names = ("index", "constant", "error", "absolute")
        return dataclasses.replace(self, **{name: getattr(self, name)[index] for name in names})


def written(ctx: Context, op: Callable[..., Tensor], operands: Sequence[Interval | Tensor]) -> Written | None:
    """Relax ``op`` on tensors; return None where an entry comes from another example of the batch."""
    varying = [v for v in operands if isinstance(v, Interval)]
    batch = int(varying[0].shape[0])
    if any(not len(v.shape) or v.shape[0] != batch for v in varying):
        return None
    starts = [0]
    for v in operands:
        starts.append(starts[-1] + v.shape.numel())
    numbers = [
        torch.arange(start, start + v.shape.numel(), device=varying[0].device).reshape(v.shape)
        for start, v in zip(starts, operands, strict=False)
    ]
    found = op(*numbers)  # (B, *out)
    if not found.dim() or found.shape[0] != batch:
        return None
    total = sum(v.shape[1:].numel() for v in varying)
    index, constant = torch.full_like(found, total), torch.zeros(found.shape, dtype=varying[0].dtype)
    own = torch.arange(batch).reshape(-1, *([1] * (found.dim() - 1)))
    before = 0
    for start, v in zip(starts, operands, strict=False):
        local = found - start
        here = (local >= 0) & (local < v.shape.numel())
        if not isinstance(v, Interval):
            values = v.detach().to(constant.dtype).flatten()
            constant = torch.where(here, values[local.clamp(0, max(0, len(values) - 1))], constant)
            continue
        each = v.shape[1:].numel()
        if bool((here & (local.div(max(1, each), rounding_mode="floor") != own)).any()):
            return None
        index = torch.where(here, local - own * each + before, index)
        before += each
    return Written(tuple(v.shape for v in varying), index, constant, *_rounding_bounds(ctx, varying, index))


def _rounding_bounds(ctx: Context, varying: Sequence[Interval], index: Tensor) -> tuple[Tensor, Tensor]:
    error = torch.zeros(index.shape, dtype=torch.float64)
    absolute = torch.zeros(index.shape[0], dtype=torch.float64)
    sizes = torch.cat([v.magnitude.double().reshape(v.shape[0], -1) for v in varying], 1)
    sizes = torch.cat([sizes, sizes.new_zeros(len(sizes), 1)], 1)
    rows = index.reshape(len(index), -1)
    reads = torch.zeros_like(sizes).scatter_add(1, rows, torch.ones_like(rows, dtype=torch.float64))[:, :-1]
    repeats = int(reads.max()) if reads.numel() else 1
    if ctx.soundness is Soundness.NONE or repeats <= 1:  # nothing is rounded
        return error, absolute
    dtype = varying[0].dtype
    error = (sizes.gather(1, rows) * slightly_up(gamma(repeats + 2, dtype))).reshape(index.shape)
    return error, 16.0 * rows.shape[1] * repeats * tiny(dtype) * (1 + sizes.amax(1))


def write(op: Callable[..., Tensor], ctx: Context, x: Any, source: Any, *args: Any, **kwargs: Any) -> Written | None:
    """Relax slice_scatter and its like: (x, source, constant places)."""
    return written(ctx, lambda a, b: op(a, b, *args, **kwargs), (x, source))


def scatter(ctx: Context, x: Any, dim: int, index: Tensor, source: Any, **_: Any) -> Written | None:
    """Relax x with a tensor or number ``source`` written to constant places; which of two at one place wins is open."""
    if bool((index.sort(dim).values.diff(dim=dim) == 0).any()):
        return None
    if not isinstance(source, (Interval, Tensor)):
        source = torch.full(index.shape, source, dtype=x.dtype, device=index.device)
    return written(ctx, lambda a, b: a.scatter(dim, index, b), (x, source))


def index_put(ctx: Context, x: Any, indices: Any, values: Any, accumulate: bool = False) -> Written | None:
    """Relax x with ``values``, broadcast, written to constant places; which of two at one place wins is open."""
    places = torch.ops.aten.index.Tensor(torch.arange(x.shape.numel()).reshape(x.shape), list(indices))
    if accumulate or places.unique().numel() < places.numel():
        return None
    return written(ctx, lambda a, b: torch.ops.aten.index_put.default(a, list(indices), b), (x, values))
