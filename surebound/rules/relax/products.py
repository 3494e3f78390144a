"""Matrix products, and whatever einsum makes of two tensors, where one or both vary: McCormick's planes, summed.

With middles m and radii r of the operands every product of entries is

    x y = m_y x + m_x y - m_x m_y + (x - m_x) (y - m_y),    |(x - m_x) (y - m_y)| <= r_x r_y,

so a sum of products with coefficient a has the coefficients a m_y of x and a m_x of y, which are adjoints of the
operator with the other operand held: nothing is needed but the operator itself. These planes lie half-way between two
of McCormick's (1976) above, and two below. Of products of matrices any mixture can be asked for, for theta in [-1, 1],

    (x - m_x) (y - m_y) <=  r_x r_y + theta (r_y (x - m_x) - r_x (y - m_y)),
    (x - m_x) (y - m_y) >= -r_x r_y - theta (r_y (x - m_x) + r_x (y - m_y)).

theta a is rounded, but is still theta' a for another theta' of that range: that costs nothing.
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
    FEW_ROUNDINGS,
    Soundness,
    abs_dot,
    dot,
    dot_rounding,
    gamma,
    per_example,
    round_up,
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
    y: Tensor  # the second operand's middle (B, *y), or itself if it is a constant
    error: Tensor  # (B, *out), float64
    absolute: Tensor  # (B,), float64
    balls: Balls | None = None  # None if the second operand is a constant
    matrices: bool = False  # is it a product of matrices, whose planes may be turned?

    owes = 0.0

    @property
    def loose(self) -> bool:
        return self.balls is not None

    @property
    def turned(self) -> torch.Size | None:
        """The shape (B, *params) of what ``pull`` takes as ``slope``, entries in [0, 1], 1/2 by default."""
        if self.balls is None or not self.matrices:
            return None
        x, y = self.shapes
        return torch.Size((*x[:-2], 2, x[-2], x[-1], y[-1]))

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        """Take coefficients back; slope (B or S, B, ..., 2, m, k, n): which planes above and below a matrix product."""
        wide = a.double()
        offset = abs_dot(wide, self.error) + self.absolute
        if self.balls is None:
            return Pulled((self._of_first(a),), offset)
        balls = self.balls
        if self.matrices:
            x, y = a @ self.y.mT, balls.x.mT @ a
        else:
            x = self._of_first(a)
            y = vjp_adjoint(partial(self.apply, balls.x), a, self._shape(a, self.shapes[1]))
        offset = offset - dot(wide, balls.middle) + abs_dot(wide, balls.spread)
        if slope is None:
            return Pulled((x, y), offset)
        more, less, moved = _turned(a, slope, balls, self.y)
        return Pulled((x + more, y - less), offset + moved)

    def _of_first(self, a: Tensor) -> Tensor:
        return vjp_adjoint(lambda v: self.apply(v, self.y), a, self._shape(a, self.shapes[0]))

    def _shape(self, a: Tensor, shape: torch.Size) -> torch.Size:
        return torch.Size((a.shape[1], *shape[1:]))

    def select(self, index: Index) -> Products:
        found = dataclasses.replace(self, error=self.error[index], absolute=self.absolute[index])
        if self.balls is None:
            return found
        return dataclasses.replace(found, y=self.y[index], balls=self.balls.select(index))


@dataclass(frozen=True)
class Balls:
    """Two varying operands: |x - m_x| <= r_x and |y - m_y| <= r_y, all numbers of the network's dtype."""

    x: Tensor  # m_x, (B, *x)
    x_radius: Tensor
    y_radius: Tensor  # (B, *y)
    middle: Tensor  # m_x m_y, summed: (B, *out), float64
    spread: Tensor  # r_x r_y, summed

    def select(self, index: Index) -> Balls:
        return Balls(*(getattr(self, field.name)[index] for field in dataclasses.fields(self)))


def _turned(a: Tensor, slope: Tensor, balls: Balls, y_middle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what turned planes of a product of matrices add to coefficients of x, take from those of y, and add to
    the offset: for every summand by itself, a (S, B, ..., m, n), slope (..., 2, m, k, n)."""
    turn = 2 * slope.clamp(0, 1) - 1
    positive = a.clamp(min=0)
    above = positive.unsqueeze(-2) * turn[..., 0, :, :, :]  # (S, B, ..., m, k, n): theta a+, at most a+ in size
    below = (a - positive).unsqueeze(-2) * turn[..., 1, :, :, :]
    x, y = (above - below), (above + below)
    x_radius, y_radius = balls.x_radius.unsqueeze(-1), balls.y_radius.unsqueeze(-3)
    more = (x * y_radius).sum(-1)
    less = (y * x_radius).sum(-3)
    moved = dot(y.double(), (x_radius.double() * y_middle.unsqueeze(-3).double()))
    return more, less, moved - dot(x.double(), balls.x.unsqueeze(-1).double() * y_radius.double())


def product_planes(
    ctx: Context, apply: Bilinear, x: Interval, y: Interval | Tensor, *, matrices: bool = False
) -> Products | None:
    """Relax a bilinear operator by McCormick's planes; return None where examples of the batch mix."""
    counts = _counts(apply, x, y)
    if counts is None:
        return None
    terms, *back = counts
    size = apply(x.magnitude.double(), (y.magnitude if isinstance(y, Interval) else y.abs()).double())
    summed = torch.Size((*x.shape, y.shape[-1])) if matrices else size.shape
    error, absolute = _rounding_bounds(ctx, x, y, size, terms, back, summed)
    if not isinstance(y, Interval):
        return Products(apply, (x.shape,), y, error, absolute)
    (x_middle, x_radius), (y_middle, y_radius) = _ball(x), _ball(y)
    balls = Balls(
        x_middle, x_radius, y_radius, apply(x_middle.double(), y_middle.double()),
        apply(x_radius.double(), y_radius.double()),
    )  # fmt: skip
    return Products(apply, (x.shape, y.shape), y_middle, error, absolute, balls, matrices)


def _ball(x: Interval) -> tuple[Tensor, Tensor]:
    """Return a middle and a radius around it that holds both ends, in the dtype of these."""
    middle = x.center
    wide = torch.maximum(x.upper.double() - middle.double(), middle.double() - x.lower.double())
    return middle, round_up(wide * (1 + FEW_ROUNDINGS), x.dtype)


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
    ctx: Context,
    x: Interval,
    y: Interval | Tensor,
    size: Tensor,
    terms: int,
    back: list[int],
    summed: torch.Size,
) -> tuple[Tensor, Tensor]:
    """Bound the rounding (B, *out) of the network's sum, our coefficients and our planes.

    size: |x| |y| summed. summed: the shape (B, *all) of what the longest sum in float64 is taken over.
    """
    if ctx.soundness is Soundness.NONE:
        return torch.zeros_like(size), torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    own = gamma(terms + 2, x.dtype) if ctx.soundness is Soundness.DEPLOYED else 0.0
    # A coefficient is a sum of products with the middle and, of turned planes, one of differences with the radius:
    # |m| + r is the size of the operand, but for the rounding of the middle.
    coefficients = sum(gamma(2 * count + 6, x.dtype) for count in back)
    # The planes, and ``size`` itself, are sums of products in float64; so are their products with a. Turned planes move
    # the offset by two sums over all summands of all outputs, (B, ..., m, k, n), of r_x |m_y| and |m_x| r_y <= size.
    planes = several_sums(terms + 8, 4) + 4 * dot_rounding(summed, torch.float64)
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
    if not both:
        return None
    matrices = len(x.shape) > 2 and x.shape[:-2] == y.shape[:-2]
    return product_planes(ctx, torch.matmul, x, y, matrices=matrices)


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
