"""Fully connected layers and matrix products: two products each with a constant (Gowal et al. 2018, eq. 6)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.kernels.matrices import matrix_input
from surebound.rules.adjoint_gradient import matrix_adjoint
from surebound.rules.affine import BLOCK, both_vary, by_rows, magnitude_by_rows, weighted
from surebound.rules.facts import Affine, Memory, Sums
from surebound.rules.layouts import linear_layer
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.products import einsum_planes, matmul_planes
from surebound.rules.vjp import vjp_adjoint


def linear_interval(ctx: Context, x: Any, weight: Any, bias: Any = None) -> Interval:
    """Bound x W^T + b for x (..., in), weight (out, in), bias (out,)."""
    if isinstance(x, Interval) and isinstance(weight, Tensor):
        terms, outputs = weight.shape[1], weight.shape[0]
        return weighted(ctx, x, weight, bias, terms, outputs, F.linear, batched=len(x.shape) > 1)
    if bias is not None:
        return _product_plus(ctx, bias, x, _transposed(weight))
    return matmul_interval(ctx, x, _transposed(weight))


def _transposed(weight: Any) -> Any:
    return weight.select(torch.t) if isinstance(weight, Interval) else weight.t()


def _linear_magnitude(m: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return |W| m + |b|."""
    if not by_rows(m, weight):
        return F.linear(m, weight.abs(), None if bias is None else bias.abs())
    product, *_ = magnitude_by_rows(m, weight)
    return product if bias is None else product.add_(bias.abs())


def linear_adjoint(a: Tensor, in_shape: torch.Size, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a W (S, B, ..., in) for coefficients a (S, B, ..., out)."""
    if torch.is_grad_enabled() and (a.requires_grad or weight.requires_grad):
        return matrix_adjoint(a, weight) if a.dim() == 3 else a @ weight
    return matrix_input(a.flatten(0, -2), weight).view(*a.shape[:-1], weight.shape[1]) if a.dim() == 3 else a @ weight


def linear_constant(in_shape: torch.Size, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Return the bias as (1, ..., out)."""
    return None if bias is None else bias.reshape(*([1] * (len(in_shape) - 1)), -1)


def _largest(v: Tensor, weight: Tensor) -> Tensor:
    """Return the largest |w_i| v_i of each row w of weight (out, in), v (..., in) >= 0: (..., out)."""
    flat, rows = v.reshape(-1, v.shape[-1]), max(1, BLOCK // max(1, v.numel()))
    parts = [(flat.unsqueeze(1) * part.abs()).amax(2) for part in torch.split(weight, rows)]
    return torch.cat(parts, 1).reshape(*v.shape[:-1], len(weight))


def _sums(weight: Tensor, bias: Tensor | None = None) -> Sums | None:
    """Return the sums of x W^T."""
    if weight.dim() != 2:
        return None
    return Sums(lambda v, fn: F.linear(v, fn(weight)), lambda v: _largest(v, weight))


register(
    Rule(
        op="aten.linear.default",
        family="linear",
        interval=linear_interval,
        affine=Affine(
            adjoint=linear_adjoint,
            magnitude=_linear_magnitude,
            terms=lambda weight, bias=None: int(weight.shape[1]),
            adjoint_terms=lambda weight, bias=None: int(weight.shape[0]),
            constant=linear_constant,
            linear=lambda x, weight, bias=None: F.linear(x, weight),
            sums=_sums,
        ),
        memory=Memory.OWN,
        layer=linear_layer,
    )
)


def _plus(value: Tensor, bias: Tensor | None) -> Tensor:
    return value if bias is None else value + bias


def matmul_interval(ctx: Context, x: Any, y: Any) -> Interval:
    """Bound x (..., n) @ y (n, m) or batched, with a constant on either side or both varying."""
    return _weighted_product(ctx, x, y, None, 0)


def _weighted_product(ctx: Context, x: Any, y: Any, bias: Any, more: int) -> Interval:
    """Bound x @ y + bias, summed in any order; ``more`` counts further roundings."""
    terms = int(x.shape[-1]) + more
    if isinstance(x, Interval) and isinstance(y, Interval):
        return both_vary(ctx, x, y, terms, torch.matmul)
    if isinstance(x, Interval):
        return weighted(ctx, x, y, bias, terms, 1, lambda v, w, b: _plus(v @ w, b))
    if isinstance(y, Interval):
        return weighted(ctx, y, x, bias, terms, 1, lambda v, w, b: _plus(w @ v, b))
    raise BoundError("matmul_interval needs an operand that varies")


def _product_plus(ctx: Context, bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Interval:
    """Bound beta bias + alpha x @ y (addmm, baddbmm). The bias is one more summand, whatever the order."""
    if isinstance(x, Interval) == isinstance(y, Interval) or (beta != 1 and isinstance(bias, Interval)):
        raise BoundError(
            "a product with a bias in one call, where not exactly one matrix varies or beta scales a varying bias; "
            "write the product and the sum as two calls"
        )
    if alpha != 1:
        x, y = (x, y * alpha) if isinstance(x, Interval) else (x * alpha, y)
    if beta != 1:
        bias = bias * beta
    return _weighted_product(ctx, x, y, bias, more=2)


register(
    Rule(
        op="aten.addmm.default",
        family="linear",
        interval=_product_plus,
        affine=Affine(
            adjoint=lambda a, in_shape, bias, w, beta=1, alpha=1: a @ (w.t() if alpha == 1 else w.t() * alpha),
            magnitude=lambda m, bias, w, beta=1, alpha=1: (m @ w.abs()) * abs(alpha) + bias.abs() * abs(beta),
            terms=lambda bias, w, beta=1, alpha=1: int(w.shape[0]) + 3,
            adjoint_terms=lambda bias, w, beta=1, alpha=1: int(w.shape[1]) + 1,
            position=1,
        ),
        memory=Memory.OWN,
    )
)
register(
    Rule(
        op="aten.baddbmm.default",
        family="linear",
        interval=_product_plus,
        affine=Affine(
            adjoint=lambda a, in_shape, bias, w, beta=1, alpha=1: a @ (w.mT if alpha == 1 else w.mT * alpha),
            magnitude=lambda m, bias, w, beta=1, alpha=1: (m @ w.abs()) * abs(alpha) + bias.abs() * abs(beta),
            terms=lambda bias, w, beta=1, alpha=1: int(w.shape[-2]) + 3,
            adjoint_terms=lambda bias, w, beta=1, alpha=1: int(w.shape[-1]) + 1,
            position=1,
        ),
        memory=Memory.OWN,
    )
)


def _right_adjoint(a: Tensor, in_shape: torch.Size, w: Tensor) -> Tensor:
    """Return the adjoint of x @ w, w (n,), (n, m) or matrices (..., n, m), of a (S, B, ..., m)."""
    if w.dim() > max(2, len(in_shape)):
        return vjp_adjoint(torch.matmul, a, in_shape, w)
    return _summed(a.unsqueeze(-1) * w if w.dim() == 1 else a @ w.mT, in_shape)


def _left_adjoint(a: Tensor, in_shape: torch.Size, w: Tensor) -> Tensor:
    """Return the adjoint of w @ x, x (B, ..., n, p), w (m, n) or (..., m, n), of a (S, B, ..., m, p)."""
    if w.dim() > max(2, len(in_shape)):
        return vjp_adjoint(lambda x: w @ x, a, in_shape)
    return _summed(w.mT @ a, in_shape)


def _summed(back: Tensor, in_shape: torch.Size) -> Tensor:
    """Sum over the axes along which the operand (B, *in) was repeated to fit several matrices."""
    return back.sum_to_size(back.shape[0], *in_shape)


def _repeats(in_shape: tuple[int, ...], w: Tensor) -> int:
    """Count the matrices w (..., n, m) that read one matrix of the operand (..., n, p)."""
    own = tuple(in_shape[:-2])
    return math.prod(np.broadcast_shapes(own, tuple(w.shape[:-2]))) // max(1, math.prod(own))


_RIGHT = Affine(
    adjoint=_right_adjoint,
    magnitude=lambda m, w: m @ w.abs(),
    terms=lambda w: int(w.shape[0 if w.dim() == 1 else -2]),
    adjoint_terms=lambda w: 1 if w.dim() == 1 else math.prod(w.shape[:-2]) * int(w.shape[-1]),
    adjoint_terms_in=lambda in_shape, w: 1 if w.dim() == 1 else int(w.shape[-1]) * _repeats(in_shape, w),
    sums=lambda w: _sums(w.mT) if w.dim() == 2 else None,
)
_LEFT = Affine(
    adjoint=_left_adjoint,
    magnitude=lambda m, w: w.abs() @ m,
    terms=lambda w: int(w.shape[-1]),
    adjoint_terms=lambda w: math.prod(w.shape[:-1]),
    adjoint_terms_in=lambda in_shape, w: int(w.shape[-2]) * _repeats(in_shape, w),
    position=1,
)
for _op in ("aten.mm.default", "aten.matmul.default", "aten.bmm.default", "aten.mv.default"):
    _also = (_LEFT,) if _op in ("aten.matmul.default", "aten.bmm.default") else ()
    _relax = matmul_planes if _also else None
    register(Rule(_op, "linear", matmul_interval, _RIGHT, also=_also, relax=_relax, memory=Memory.OWN, multiplies=True))


def _einsum(ctx: Context, equation: str, operands: list[Any], **_: Any) -> Interval:
    """Bound an einsum of two operands, at least one varying; every letter that is not in the result is summed."""
    if len(operands) == 1 and isinstance(operands[0], Interval):
        ones = torch.ones((), dtype=operands[0].dtype, device=operands[0].device)
        inputs, _arrow, output = equation.partition("->")
        return _einsum(ctx, f"{inputs},->{output}" if output else f"{inputs},", [*operands, ones])
    if len(operands) != 2:
        raise BoundError(f"einsum of {len(operands)} tensors; write it with one or two at a time")
    x, y = operands
    apply = partial(torch.einsum, equation)
    terms = _summands(equation, x.shape, y.shape)
    if isinstance(x, Interval) and isinstance(y, Interval):
        return both_vary(ctx, x, y, terms, apply)
    if isinstance(x, Interval):
        return weighted(ctx, x, y, None, terms, 1, lambda v, w, b: _plus(apply(v, w), b))
    return weighted(ctx, y, x, None, terms, 1, lambda v, w, b: _plus(apply(w, v), b))


def _summands(equation: str, first: torch.Size, second: torch.Size) -> int:
    """Count the summands at most: the product of the sizes of all letters that are not in the result."""
    inputs, _, output = equation.replace(" ", "").partition("->")
    if "..." in equation:
        return first.numel() * second.numel()
    sizes: dict[str, int] = {}
    for letters, shape in zip(inputs.split(","), (first, second), strict=True):
        sizes.update(zip(letters, shape, strict=True))
    total = 1
    for letter, size in sizes.items():
        total *= 1 if letter in output else size
    return total


register(Rule("aten.einsum.default", "linear", _einsum, relax=einsum_planes, note="one or two tensors"))
