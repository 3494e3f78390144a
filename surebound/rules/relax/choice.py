"""The largest or smallest of several entries (max-pooling, amax, amin): y >= the entry with the best lower bound."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import (
    FEW_ROUNDINGS,
    Soundness,
    by_rows,
    dot,
    dot_rounding,
    gamma,
    per_example,
    round_up,
    tiny,
)
from surebound.rules.registry import Context
from surebound.rules.relax.lines import Index, Pulled
from surebound.rules.windows import pool_windows


@dataclass(frozen=True)
class Choice:
    """y >= x[index] - error; y <= x[index] + error where it surely wins, else y <= top. (A minimum: negated.)"""

    in_shape: torch.Size  # (B, *in)
    index: Tensor  # (B, *out), into x.flatten(1)
    sure: Tensor  # (B, *out): 1 where the entry wins whatever the input, else 0
    error: Tensor  # (B, *out): rounding of sums of coefficients
    top: Tensor  # (B, *out): error where sure, else the upper bound
    absolute: Tensor  # (B,), float64
    sign: float  # 1: maximum, -1: minimum

    owes = 0.0

    @property
    def loose(self) -> bool:
        return bool((self.sure == 0).any())

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        a = a * self.sign
        positive = a.clamp(min=0)
        negative = a - positive
        kept = (negative + positive * self.sure).reshape(*a.shape[:2], math.prod(a.shape[2:]))  # (S, B, N)
        flat = kept.new_zeros(*a.shape[:2], math.prod(self.in_shape[1:]))
        flat = flat.scatter_add(2, by_rows(self.index).expand(kept.shape), kept)
        offset = dot(positive, self.top) - dot(negative, self.error) + self.absolute
        return Pulled(((flat * self.sign).reshape(*a.shape[:2], *self.in_shape[1:]),), offset)

    def select(self, index: Index) -> Choice:
        return dataclasses.replace(
            self,
            index=self.index[index],
            sure=self.sure[index],
            error=self.error[index],
            top=self.top[index],
            absolute=self.absolute[index],
        )


def choose(ctx: Context, x: Interval, windows: Tensor, shape: Sequence[int], sign: float = 1.0) -> Choice:
    """Relax the largest entry of windows (P, W): flat positions of what each of P outputs looks at; -1 for none."""
    lower, upper = (x.lower, x.upper) if sign > 0 else (-x.upper, -x.lower)
    batch, (outputs, width) = x.shape[0], windows.shape
    missing = windows.reshape(-1) < 0
    at = windows.reshape(-1).clamp(min=0)

    def gathered(value: Tensor) -> Tensor:
        values = by_rows(value)[:, at].masked_fill(missing, -math.inf)
        return values.reshape(batch, outputs, width)

    lows, highs = gathered(lower), gathered(upper)
    best, which = lows.max(2)  # (B, P)
    others = highs.scatter(2, which.unsqueeze(2), -math.inf).amax(2)
    sure = best >= others
    index = windows.expand(batch, -1, -1).gather(2, which.unsqueeze(2)).squeeze(2).clamp(min=0)
    top = highs.amax(2)
    error, absolute = _rounding_bounds(ctx, x, windows, index, top)
    top = torch.where(sure, error, top)
    if ctx.soundness is not Soundness.NONE:
        rate = 2 * dot_rounding(torch.Size((batch, *shape)), x.dtype) + FEW_ROUNDINGS
        top = round_up(top.double() + rate * top.double().abs(), x.dtype)
        error = round_up(error.double() * (1 + rate), x.dtype)
    out = (batch, *shape)
    sure_number = sure.to(x.dtype)
    return Choice(
        x.shape,
        index.reshape(out),
        sure_number.reshape(out),
        error.reshape(out),
        top.reshape(out),
        absolute,
        sign,
    )


def _rounding_bounds(ctx: Context, x: Interval, windows: Tensor, index: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Bound the rounding and underflow of the sum of coefficients that an entry of several windows gets."""
    zero = torch.zeros(x.shape[0], dtype=torch.float64, device=like.device)
    if ctx.soundness is Soundness.NONE:
        return torch.zeros_like(like), zero
    used = windows[windows >= 0]
    repeats = int(torch.bincount(used).max()) if used.numel() else 1
    size = by_rows(x.magnitude).gather(1, index).double()
    error = size * gamma(repeats + 2, x.dtype) if repeats > 1 else torch.zeros_like(size)
    largest = per_example(x.magnitude.double())
    return round_up(error, x.dtype), zero + 16.0 * like.shape[1] * repeats * tiny(x.dtype) * (1 + largest)


def max_pool(
    rank: int,
    ctx: Context,
    x: Interval,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Choice | None:
    """Relax max-pooling of x (B, C, *size). Padding never wins."""
    if len(x.shape) != rank + 2:
        return None
    windows, sizes = pool_windows(x.shape, kernel, stride, padding, dilation, ceil_mode)
    return choose(ctx, x, windows.to(x.device), (int(x.shape[1]), *sizes))


def extreme(sign: float, ctx: Context, x: Interval, dim: Any = (), keepdim: bool = False) -> Choice | None:
    """Relax amax (sign 1) or amin (-1) over some axes, not over the batch."""
    rank = len(x.shape)
    dims = [dim] if isinstance(dim, int) else list(dim)
    dims = sorted({d % rank for d in dims}) if dims else list(range(rank))
    if 0 in dims:
        return None
    positions = torch.arange(math.prod(x.shape[1:]), device=x.device).reshape(x.shape[1:])
    kept = [d for d in range(1, rank) if d not in dims]
    order = positions.permute([d - 1 for d in kept] + [d - 1 for d in dims])
    shape = [int(x.shape[d]) for d in kept]
    windows = order.reshape(math.prod(shape), -1)
    if keepdim:
        shape = [1 if d in dims else int(x.shape[d]) for d in range(1, rank)]
    return choose(ctx, x, windows, shape, sign)
