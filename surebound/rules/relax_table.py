"""Which operator has which linear relaxation.

Operators that are affine in their one varying operand need none; those that are in neither table are bounded by
constants, their interval.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.rules import (  # noqa: F401  (they register the rows that this file adds a column to)
    activation,
    arithmetic,
    convolution,
    curved,
    joining,
    linear,
    normalization,
    piecewise,
    pooling,
    power,
    reduction,
    selection,
    shape,
    smooth,
    softmax,
)
from surebound.rules.registry import attach
from surebound.rules.relax.choice import extreme, max_pool
from surebound.rules.relax.join import join_parts
from surebound.rules.relax.pairs import (
    difference_lines,
    masked_fill_lines,
    maximum_lines,
    minimum_lines,
    product_lines,
    reverse_difference_lines,
    same_lines,
    sum_lines,
    where_lines,
)
from surebound.rules.relax.parameters import clamp_lines, power_lines, prelu_lines, threshold_lines
from surebound.rules.relax.pointwise import Bend, pointwise_lines
from surebound.rules.relax.products import einsum_planes, matmul_planes
from surebound.rules.relax.quotient import quotient_lines
from surebound.rules.relax.relu import abs_lines, leaky_lines, relu_lines
from surebound.rules.relax.windows import adaptive_max_pool, along_axis, both_ends, running
from surebound.rules.relax.write import index_put, scatter, write


def _size(low: Tensor, high: Tensor) -> Tensor:
    return torch.maximum(low.abs(), high.abs())


def _power_curvature(low: Tensor, high: Tensor, exponent: float) -> Tensor:
    """|p (p - 1)| |x|^(p - 2), largest at one end; where x^p has no bound there is none."""
    near = torch.where((low <= 0) & (high >= 0), torch.zeros_like(low), torch.minimum(low.abs(), high.abs()))
    at = _size(low, high) if exponent >= 2 else near
    return abs(exponent * (exponent - 1)) * at.pow(exponent - 2)


def _reciprocal_curvature(low: Tensor, high: Tensor) -> Tensor:
    return 2 / torch.minimum(low.abs(), high.abs()).pow(3)


def _elu_curvature(
    low: Tensor, high: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Tensor:
    """scale alpha input_scale^2 exp(input_scale x) below 0; nothing above."""
    top = torch.maximum(input_scale * low, input_scale * high.clamp(max=0))
    return abs(scale * alpha) * input_scale**2 * top.exp()


#: Bounds of |f''| from calculus: the largest value of the second derivative, rounded up.
BENDS: dict[str, Bend | None] = {
    "sigmoid.default": Bend(0.09623),  # 1 / (6 sqrt 3)
    "tanh.default": Bend(0.76981),  # 4 / (3 sqrt 3)
    "erf.default": Bend(0.96789),  # sqrt(8 / (pi e)), at 1 / sqrt 2
    "erfc.default": Bend(0.96789),
    "atan.default": Bend(0.64952),  # 3 sqrt 3 / 8
    "asinh.default": Bend(0.38491),  # 2 / (3 sqrt 3)
    "sinh.default": Bend(lambda low, high: torch.sinh(_size(low, high))),
    "gelu.default": Bend(0.79789),  # sqrt(2 / pi), at 0, for both formulas
    "silu.default": Bend(0.50001),  # 1 / 2, at 0
    "mish.default": Bend(0.64421),  # at -0.0879
    "hardswish.default": Bend(0.33334, kinks=(-3.0, 3.0)),
    "sin.default": Bend(1.0),
    "cos.default": Bend(1.0),
    "selu.default": Bend(1.75810, kinks=(0.0,)),  # scale alpha, at 0-
    "elu.default": Bend(_elu_curvature, kinks=(0.0,)),
    "pow.Tensor_Scalar": Bend(_power_curvature),
    "reciprocal.default": Bend(_reciprocal_curvature),
    "rsqrt.default": Bend(lambda low, high: 0.75 * low.pow(-2.5)),
    # Convex, concave or piecewise linear: their facts are enough.
    **dict.fromkeys(
        (
            *("exp.default", "exp2.default", "expm1.default", "log.default", "log1p.default", "log2.default"),
            *("log10.default", "sqrt.default", "square.default", "cosh.default", "softplus.default"),
            *("log_sigmoid.default", "celu.default", "hardtanh.default", "relu6.default", "clamp.default"),
            *("clip.default", "clamp_min.default", "clamp_max.default", "hardsigmoid.default"),
        )
    ),
}


def _clamp_min(ctx: Any, x: Any, low: float) -> Any:
    """ReLU under another name."""
    return relu_lines(ctx, x) if low == 0 else pointwise_lines("aten.clamp_min.default", None, ctx, x, low)


def _clamp(op: str, ctx: Any, x: Any, min: Any = None, max: Any = None) -> Any:
    """ReLU under yet another name."""
    return relu_lines(ctx, x) if min == 0 and max is None else pointwise_lines(op, None, ctx, x, min, max)


def _leaky(ctx: Any, x: Any, slope: float = 0.01) -> Any:
    found = leaky_lines(ctx, x, slope)
    return pointwise_lines("aten.leaky_relu.default", None, ctx, x, slope) if found is None else found


RELAXATIONS: dict[str, Callable[..., Any]] = {
    **{name: partial(pointwise_lines, f"aten.{name}", bend) for name, bend in BENDS.items()},
    "relu.default": relu_lines,
    "abs.default": abs_lines,
    "leaky_relu.default": _leaky,
    "clamp_min.default": _clamp_min,
    "clamp.default": partial(_clamp, "aten.clamp.default"),
    "clip.default": partial(_clamp, "aten.clip.default"),
    "prelu.default": prelu_lines,
    "threshold.default": threshold_lines,
    "clamp.Tensor": clamp_lines,
    "clip.Tensor": clamp_lines,
    "clamp_min.Tensor": maximum_lines,
    "clamp_max.Tensor": minimum_lines,
    "pow.Scalar": power_lines,
    "pow.Tensor_Tensor": power_lines,
    "add.Tensor": sum_lines,
    "sub.Tensor": difference_lines,
    "rsub.Tensor": reverse_difference_lines,
    "mul.Tensor": product_lines,
    "div.Tensor": quotient_lines,
    "maximum.default": maximum_lines,
    "max.other": maximum_lines,
    "fmax.default": maximum_lines,
    "minimum.default": minimum_lines,
    "min.other": minimum_lines,
    "fmin.default": minimum_lines,
    "where.self": where_lines,
    "where.ScalarOther": where_lines,
    "where.ScalarSelf": where_lines,
    "masked_fill.Scalar": masked_fill_lines,
    "masked_fill.Tensor": masked_fill_lines,
    "matmul.default": matmul_planes,
    "bmm.default": matmul_planes,
    "einsum.default": einsum_planes,
    "cat.default": join_parts,
    "concat.default": join_parts,
    "stack.default": partial(join_parts, stacked=True),
    **{
        f"{name}.default": write(name)
        for name in ("slice_scatter", "select_scatter", "diagonal_scatter", "copy")
    },
    **dict.fromkeys(("_to_copy.default", "to.dtype", "type_as.default"), same_lines),
    "scatter.src": scatter,
    "scatter.value": scatter,
    "index_put.default": index_put,
    "amax.default": partial(extreme, 1.0),
    "amin.default": partial(extreme, -1.0),
    "max_pool2d_with_indices.default": partial(max_pool, 2),
    "max_pool3d_with_indices.default": partial(max_pool, 3),
    **{f"max_pool{rank}d.default": partial(max_pool, rank) for rank in (1, 2, 3)},
    **{f"adaptive_max_pool{rank}d.default": partial(adaptive_max_pool, rank) for rank in (1, 2, 3)},
    "max.dim": partial(along_axis, 1.0),
    "min.dim": partial(along_axis, -1.0),
    "cummax.default": partial(running, 1.0),
    "cummin.default": partial(running, -1.0),
    "aminmax.default": both_ends,
}

for _op, _relax in RELAXATIONS.items():
    attach(f"aten.{_op}", relax=_relax)
