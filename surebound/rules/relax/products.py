"""Matrix products, and whatever einsum makes of two tensors, where one or both vary: McCormick's planes, summed.

Every product x y of entries lies between two planes (McCormick 1976),

    y_low x + x_low y - x_low y_low  <=  x y  <=  y_high x + x_low y - x_low y_high,

so a sum of products with coefficient a has the coefficients a+ y_high + a- y_low of x and a x_low of y, which are
adjoints of the operator with the other operand held: nothing is needed but the operator itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import (
    Soundness,
    abs_dot,
    dot,
    dot_rounding,
    gamma,
    per_example,
    several_sums,
    slightly_up,
    tiny,
)
from surebound.rules.registry import Context
from surebound.rules.relax.lines import Index, Pulled
from surebound.rules.vjp import vjp_adjoint

Bilinear = Callable[[Tensor, Tensor], Tensor]  # per example: (B, *x), (B, *y) -> (B, *out); y may be a constant


@dataclass(frozen=True)
class Products:
    """y between planes of one or two varying operands, each (B, *operand)."""

    apply: Bilinear
    shapes: tuple[torch.Size, ...]
    low: Tensor  # of the second operand: its ends, (B, *y); the same twice if it is a constant
    high: Tensor
    first: Tensor | None  # the first operand's lower end (B, *x); None if the second is a constant
    bottom: Tensor  # x_low y_low and x_low y_high, (B, *out), in float64
    top: Tensor
    error: Tensor  # (B, *out), float64
    absolute: Tensor  # (B,), float64

    owes = 0.0

    @property
    def loose(self) -> bool:
        return self.first is not None

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        positive = a.clamp(min=0)
        negative = a - positive
        wide = a.double()
        offset = abs_dot(wide, self.error) + self.absolute
        if self.first is None:
            return Pulled((self._back(a, self.shapes[0], self.low),), offset)
        x = self._back(positive, self.shapes[0], self.high) + self._back(negative, self.shapes[0], self.low)
        y = vjp_adjoint(partial(self.apply, self.first), a, self._shape(a, self.shapes[1]))
        offset = offset - dot(positive.double(), self.top) - dot(negative.double(), self.bottom)
        return Pulled((x, y), offset)

    def _back(self, a: Tensor, shape: torch.Size, held: Tensor) -> Tensor:
        return vjp_adjoint(lambda x: self.apply(x, held), a, self._shape(a, shape))

    def _shape(self, a: Tensor, shape: torch.Size) -> torch.Size:
        return torch.Size((a.shape[1], *shape[1:]))

    def select(self, index: Index) -> Products:
        held = () if self.first is None else ("low", "high", "first", "bottom", "top")
        names = (*held, "error", "absolute")
        return dataclasses.replace(self, **{name: getattr(self, name)[index] for name in names})


def product_planes(ctx: Context, apply: Bilinear, x: Interval, y: Interval | Tensor) -> Products | None:
    """Relax a bilinear operator by McCormick's planes; return None where examples of the batch mix."""
    counts = _counts(apply, x, y)
    if counts is None:
        return None
    terms, *back = counts
    ends = (y.lower, y.upper) if isinstance(y, Interval) else (y, y)
    size = apply(x.magnitude.double(), (y.magnitude if isinstance(y, Interval) else y.abs()).double())
    error, absolute = _rounding_bounds(ctx, x, y, size, terms, back)
    zero = torch.zeros_like(size)
    if not isinstance(y, Interval):
        return Products(apply, (x.shape,), *ends, None, zero, zero, error, absolute)
    low = x.lower.double()
    planes = (apply(low, y.lower.double()), apply(low, y.upper.double()))
    return Products(apply, (x.shape, y.shape), *ends, x.lower, *planes, error, absolute)


def _counts(apply: Bilinear, x: Interval, y: Interval | Tensor) -> tuple[int, ...] | None:
    """Count the summands of one output and of one coefficient of x and of y, by running the operator on ones."""
    ones = [torch.ones(v.shape, dtype=torch.float64, device=v.device) for v in (x, y)]
    out = apply(*ones)
    batch = int(x.shape[0])
    varying = 2 if isinstance(y, Interval) else 1
    if any(v.dim() == 0 or v.shape[0] != batch for v in (out, *ones[:varying])):
        return None
    one_example = torch.zeros_like(out).unsqueeze(0)
    one_example[0, 0] = 1.0
    found = [int(out.max()) if out.numel() else 0]
    for k in range(varying):
        held = (lambda v: apply(v, ones[1])) if k == 0 else (lambda v: apply(ones[0], v))
        if bool(vjp_adjoint(held, one_example, ones[k].shape)[0, 1:].any()):
            return None
        back = vjp_adjoint(held, torch.ones_like(out).unsqueeze(0), ones[k].shape)
        found.append(int(back.max()) if back.numel() else 0)
    return tuple(found)


def _rounding_bounds(
    ctx: Context, x: Interval, y: Interval | Tensor, size: Tensor, terms: int, back: list[int]
) -> tuple[Tensor, Tensor]:
    """Bound the rounding (B, *out) of the network's sum, our coefficients and our planes; ``size``: |x| |y| summed."""
    if ctx.soundness is Soundness.NONE:
        return torch.zeros_like(size), torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    own = gamma(terms + 2, x.dtype) if ctx.soundness is Soundness.DEPLOYED else 0.0
    # A coefficient of x is a sum of two sums, of a+ and of a-.
    coefficients = sum(gamma(count + 3, x.dtype) for count in back)
    # The planes, and ``size`` itself, are sums of products in float64; so are their products with a.
    planes = several_sums(terms + 8, 4) + 4 * dot_rounding(size.shape, torch.float64)
    error = size * slightly_up(own + coefficients + planes)
    largest = per_example(x.magnitude).double() + _largest(y)
    under = 16.0 * (terms + sum(back) + 1) * tiny(x.dtype) * (1 + largest)
    error = error + under.reshape(-1, *([1] * (size.dim() - 1)))
    if ctx.soundness is Soundness.DEPLOYED:  # where some order of summation may overflow nothing is known
        error = torch.where(size > torch.finfo(x.dtype).max / 4, torch.full_like(error, math.inf), error)
    return error, 2.0 * max(1, math.prod((*size.shape[1:], *x.shape[1:], *y.shape[1:]))) * under


def _largest(y: Interval | Tensor) -> Tensor:
    if isinstance(y, Interval):
        return per_example(y.magnitude).double()
    return y.detach().double().abs().max() if y.numel() else torch.zeros((), dtype=torch.float64)


def matmul_planes(ctx: Context, x: Any, y: Any) -> Products | None:
    """Relax x @ y of two varying tensors; with a constant it is affine."""
    both = isinstance(x, Interval) and isinstance(y, Interval)
    return product_planes(ctx, torch.matmul, x, y) if both else None


def einsum_planes(ctx: Context, equation: str, operands: list[Any], **_: Any) -> Products | None:
    """Relax any sum of products of one or two tensors; the varying ones in their order."""
    if len(operands) == 1:
        ones = torch.ones((), dtype=operands[0].dtype, device=operands[0].device)
        return product_planes(ctx, lambda x, _one: torch.einsum(equation, x), operands[0], ones)
    x, y = operands
    if not (isinstance(x, Interval) and isinstance(y, Interval)) and _shares_batch(equation):
        return None  # a constant with a row for each example of one batch; steps are made for any batch
    if isinstance(x, Interval):
        return product_planes(ctx, partial(torch.einsum, equation), x, y)
    return product_planes(ctx, lambda v, w: torch.einsum(equation, w, v), y, x)


def _shares_batch(equation: str) -> bool:
    """Do both operands of an einsum have the result's first axis, as far as the equation says?"""
    inputs, _, output = equation.replace(" ", "").partition("->")
    first = "..." if output.startswith("...") else output[:1]
    return not first or all(first in letters for letters in inputs.split(","))
