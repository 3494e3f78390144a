"""Fully connected layers and products with a constant matrix: two products each (Gowal et al. 2018, eq. 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import AffineRounding, has_subnormal, tiny
from surebound.rules.registry import Affine, Context, Rule, register

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # (x, weight, bias)


def weighted(
    ctx: Context, x: Interval, weight: Tensor, bias: Tensor | None, terms: int, outputs: int, product: Product
) -> Interval:
    """Interval bounds of ``product``, linear in x with ``outputs`` rows of ``terms`` summands."""
    if isinstance(weight, Interval) or isinstance(bias, Interval) or not isinstance(x, Interval):
        raise BoundError(
            "the weight of a linear layer depends on the input; only constant weights are supported"
        )
    center = product(x.center, weight, bias)
    rounding = AffineRounding.of(terms, x.dtype, ctx.soundness)
    if rounding.is_free:
        return Interval.around(center, product(x.radius, weight.abs(), None))
    extra = rounding.bias_in(bias)
    if not isinstance(extra, Tensor):
        extra = weight.new_full((outputs,), extra)
    if has_subnormal(weight):  # hardware that flushes them to zero loses at most tiny * |x| per term
        extra = extra + 4 * terms * tiny(weight.dtype) * x.magnitude.max()
    return Interval.around(center, product(rounding.radius_in(x.center, x.radius), weight.abs(), extra))


def linear_interval(ctx: Context, x: Interval, weight: Tensor, bias: Tensor | None = None) -> Interval:
    """x (..., in), weight (out, in), bias (out,)."""
    return weighted(ctx, x, weight, bias, weight.shape[1], weight.shape[0], F.linear)


def _absolute(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.abs()


def linear_adjoint(a: Tensor, in_shape: torch.Size, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """a (S, B, ..., out) -> (S, B, ..., in)."""
    return a @ weight


register(
    Rule(
        op="aten.linear.default",
        family="linear",
        interval=linear_interval,
        affine=Affine(
            adjoint=linear_adjoint,
            magnitude=lambda m, weight, bias=None: F.linear(m, weight.abs(), _absolute(bias)),
            terms=lambda weight, bias=None: int(weight.shape[1]),
            adjoint_terms=lambda weight, bias=None: int(weight.shape[0]),
        ),
    )
)


def _matmul(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight if bias is None else x @ weight + bias


def _matmul_interval(ctx: Context, x: Any, y: Any) -> Interval:
    """x (..., n) @ constant (n, m), or constant (m, n) @ x (..., n, p)."""
    if isinstance(x, Interval) and isinstance(y, Tensor):
        return weighted(ctx, x, y, None, y.shape[0 if y.dim() == 1 else -2], 1, _matmul)
    if isinstance(x, Tensor) and isinstance(y, Interval):
        return weighted(ctx, y, x, None, x.shape[-1], 1, lambda v, w, b: w @ v if b is None else w @ v + b)
    raise BoundError("the product of two matrices that both depend on the input has no interval rule")


for _op in ("aten.mm.default", "aten.matmul.default", "aten.bmm.default", "aten.mv.default"):
    register(Rule(op=_op, family="linear", interval=_matmul_interval))
