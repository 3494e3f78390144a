"""One small call, or a few, of every operator that has a rule: what the shared harness runs.

``call(f, c, x, ...)`` applies ``f`` (the operator itself, or its interval rule) to the varying operands x, ... and to
constants made by ``c``. Adding a layer means adding a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surebound.graph.decompose import ABOUT, as_traced
from surebound.interval import Interval


class Constants:
    """Constant arguments: the same numbers at every call, exact in float32, in the dtype asked for."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
        generator = torch.Generator().manual_seed(1 + sum(shape))
        values = torch.rand(shape, generator=generator) * (high - low) + low
        return values.to(self.dtype)


@dataclass(frozen=True)
class Case:
    op: str  # without "aten."; whole if it is one of ours, "surebound...."
    call: Callable[..., Any] = lambda f, c, x: f(x)
    shapes: tuple[tuple[int, ...], ...] = ((2, 3),)
    low: float = -2.0
    high: float = 2.0
    smooth: bool = True  # differentiable almost everywhere with a gradient worth checking
    rowwise: bool = True  # each example of the batch by itself

    @property
    def name(self) -> str:
        return self.op if self.op.startswith("surebound.") else f"aten.{self.op}"

    @property
    def overload(self) -> Callable[..., Any]:
        if self.op == ABOUT:
            return as_traced
        name, overload = self.op.split(".")
        return getattr(getattr(torch.ops.aten, name), overload)


def _unary(names: str, **kwargs: Any) -> list[Case]:
    return [Case(f"{name}.default", **kwargs) for name in names.split()]


def positive(x: Any) -> Any:
    """x > 0 as truth values, of a tensor or of bounds."""
    return x > 0 if isinstance(x, Tensor) else Interval(x.lower > 0, ~(x.upper <= 0))


V, M, S1, S2, S3 = (2, 4), (2, 3, 4), (2, 2, 7), (2, 2, 5, 6), (1, 2, 4, 5, 4)

ACTIVATIONS = [
    *_unary("relu sigmoid tanh selu relu6 hardsigmoid hardswish silu mish log_sigmoid erf erfc atan asinh sinh cosh"),
    *_unary("exp exp2 expm1 abs square sin cos leaky_relu elu celu hardtanh softplus gelu", low=-4.0, high=4.0),
    *_unary("sin cos", low=-20.0, high=20.0),
    *_unary("gelu silu mish softplus log_sigmoid selu elu tanh sigmoid", low=-30.0, high=25.0),
    *_unary("sign sgn floor ceil round trunc", smooth=False),
    *_unary("sign floor ceil round trunc", smooth=False, low=-0.75, high=0.75),
    *_unary("floor ceil round trunc", smooth=False, low=-400.0, high=900.0),
    *_unary("log log2 log10 sqrt rsqrt reciprocal", low=0.1, high=5.0),
    *_unary("reciprocal", low=-5.0, high=-0.25),
    *_unary("log1p", low=-0.75, high=3.0),
    Case("leaky_relu.default", lambda f, c, x: f(x, 0.25)),
    Case("leaky_relu.default", lambda f, c, x: f(x, 1.5)),
    Case("leaky_relu.default", lambda f, c, x: f(x, -0.5)),
    Case("prelu.default", lambda f, c, x: f(x, c(1))),
    Case("prelu.default", lambda f, c, x: f(x, c(3)), ((2, 3, 2),)),
    Case("elu.default", lambda f, c, x: f(x, 0.5, 2.0, 1.5)),
    Case("elu.default", lambda f, c, x: f(x, -0.5)),
    Case("elu.default", lambda f, c, x: f(x, 1.0, -1.0)),
    Case("elu.default", lambda f, c, x: f(x, -1.0, -1.0)),
    Case("celu.default", lambda f, c, x: f(x, 0.5)),
    Case("celu.default", lambda f, c, x: f(x, -1.5)),
    Case("softplus.default", lambda f, c, x: f(x, 2.0)),
    Case("softplus.default", lambda f, c, x: f(x, 0.5, 1.0)),
    Case("softplus.default", lambda f, c, x: f(x, -1.0)),
    Case("gelu.default", lambda f, c, x: f(x, approximate="tanh"), low=-5.0, high=5.0),
    Case("hardtanh.default", lambda f, c, x: f(x, -0.5, 0.75)),
    Case("clamp.default", lambda f, c, x: f(x, -0.5, 0.75)),
    Case("clamp.default", lambda f, c, x: f(x, None, 0.75)),
    Case("clamp.default", lambda f, c, x: f(x, -0.5)),
    Case("clamp.default", lambda f, c, x: f(x, max=0.5, min=-0.25)),
    Case("clamp.default", lambda f, c, x: f(x, 0.5, -0.5), smooth=False),
    Case("clip.default", lambda f, c, x: f(x, -0.5, 0.75)),
    Case("clamp_min.default", lambda f, c, x: f(x, -0.5)),
    Case("clamp_max.default", lambda f, c, x: f(x, 0.5)),
    Case("clamp.Tensor", lambda f, c, x: f(x, c(3) - 1, c(3) + 1)),
    Case("clamp.Tensor", lambda f, c, x, y: f(x, y, None), ((2, 3), (2, 3))),
    Case("clip.Tensor", lambda f, c, x: f(x, None, c(3))),
    Case("clamp_min.Tensor", lambda f, c, x: f(x, c(3))),
    Case("clamp_max.Tensor", lambda f, c, x: f(x, c(3))),
    Case("threshold.default", lambda f, c, x: f(x, 0.5, -1.0)),
    Case("threshold.default", lambda f, c, x: f(x, 0.5, 0.5)),
    Case("threshold.default", lambda f, c, x: f(x, 0.25, 1.5)),
    *[Case("pow.Tensor_Scalar", lambda f, c, x, p=p: f(x, p)) for p in (1, 2, 3, 4, 2.0)],
    *[Case("pow.Tensor_Scalar", lambda f, c, x, p=p: f(x, p), low=0.25) for p in (0.5, -0.5, 1.5, -1, -2, -2.5)],
    *[Case("pow.Tensor_Scalar", lambda f, c, x, p=p: f(x, p), low=-3.0, high=-0.5) for p in (-1, -2, -3)],
    Case("pow.Tensor_Scalar", lambda f, c, x: f(x, 0), smooth=False),
    Case("pow.Tensor_Tensor", lambda f, c, x: f(x, torch.tensor([2.0, 3.0, 4.0]).to(c.dtype))),
    Case("pow.Tensor_Tensor", lambda f, c, x: f(x, c(3, low=-2, high=2)), low=0.25),
    Case("pow.Tensor_Tensor", lambda f, c, y: f(c(3, low=0.5, high=2), y)),
    Case("pow.Tensor_Tensor", lambda f, c, x, y: f(x, y), ((2, 3), (2, 3)), low=0.5),
    Case("pow.Scalar", lambda f, c, x: f(2.5, x)),
    Case("pow.Scalar", lambda f, c, x: f(0.25, x)),
]

ARITHMETIC = [
    Case("add.Tensor", lambda f, c, x: f(x, c(3))),
    Case("add.Tensor", lambda f, c, x: f(c(3), x)),
    Case("add.Tensor", lambda f, c, x: f(x, 1.5)),
    Case("add.Tensor", lambda f, c, x: f(x, c(1, 4, 3)), ((2, 1, 3),)),
    Case("add.Tensor", lambda f, c, x: f(x, c(3), alpha=-2.5)),
    Case("add.Tensor", lambda f, c, x: f(c(3), x, alpha=-2.5)),
    Case("add.Tensor", lambda f, c, x, y: f(x, y), ((2, 3), (2, 3))),
    Case("add.Tensor", lambda f, c, x, y: f(x, y, alpha=0.5), ((2, 3), (2, 1))),
    Case("add.Scalar", lambda f, c, x: f(x, 1.5)),
    Case("add.Scalar", lambda f, c, x: f(x, 1.5, 2)),
    Case("sub.Tensor", lambda f, c, x: f(x, c(3))),
    Case("sub.Tensor", lambda f, c, x: f(c(3), x)),
    Case("sub.Tensor", lambda f, c, x: f(c(3), x, alpha=2)),
    Case("sub.Tensor", lambda f, c, x, y: f(x, y), ((2, 3), (2, 3))),
    Case("sub.Tensor", lambda f, c, x: f(x, x), smooth=False),
    Case("sub.Scalar", lambda f, c, x: f(x, 0.25)),
    Case("rsub.Tensor", lambda f, c, x: f(x, c(3))),
    Case("rsub.Tensor", lambda f, c, x: f(c(3), x, alpha=3)),
    Case("rsub.Scalar", lambda f, c, x: f(x, 1)),
    Case("rsub.Scalar", lambda f, c, x: f(x, 1, 2)),
    Case("mul.Tensor", lambda f, c, x: f(x, c(3))),
    Case("mul.Tensor", lambda f, c, x: f(c(3), x)),
    Case("mul.Tensor", lambda f, c, x: f(x, -1.5)),
    Case("mul.Tensor", lambda f, c, x: f(x, c(1, 4, 3)), ((2, 1, 3),)),
    Case("mul.Tensor", lambda f, c, x, y: f(x, y), ((2, 3), (2, 3))),
    Case("mul.Tensor", lambda f, c, x: f(x, x)),
    Case("mul.Scalar", lambda f, c, x: f(x, 3)),
    Case("div.Tensor", lambda f, c, x: f(x, c(3, low=-2, high=-1))),
    Case("div.Tensor", lambda f, c, x: f(x, 3)),
    Case("div.Tensor", lambda f, c, x: f(c(3), x), low=0.5),
    Case("div.Tensor", lambda f, c, x, y: f(x, y), ((2, 3), (2, 3)), low=-2.0, high=-0.25),
    Case("div.Scalar", lambda f, c, x: f(x, -4)),
    Case("neg.default"),
]

LINEAR = [
    Case("linear.default", lambda f, c, x: f(x, c(3, 4), c(3)), (V,)),
    Case("linear.default", lambda f, c, x: f(x, c(3, 4)), (M,)),
    Case("linear.default", lambda f, c, x, y: f(x, y), (V, (3, 4)), rowwise=False),
    Case("linear.default", lambda f, c, y: f(c(2, 4), y, c(3)), ((3, 4),), rowwise=False),
    Case("mm.default", lambda f, c, x: f(x, c(4, 3)), (V,)),
    Case("mm.default", lambda f, c, x: f(c(3, 2), x), (V,), rowwise=False),
    Case("matmul.default", lambda f, c, x: f(x, c(4, 3)), (M,)),
    Case("matmul.default", lambda f, c, x: f(x, c(4)), (V,)),
    Case("matmul.default", lambda f, c, x: f(c(5, 3), x), (M,)),
    Case("matmul.default", lambda f, c, x: f(x, c(2, 4, 3)), (M,), rowwise=False),
    Case("matmul.default", lambda f, c, x: f(c(2, 5, 3), x), (M,), rowwise=False),
    Case("matmul.default", lambda f, c, x: f(x, c(3, 4, 2)), ((2, 1, 3, 4),)),  # the operand read by three matrices
    Case("matmul.default", lambda f, c, x: f(c(3, 2, 3), x), ((2, 1, 3, 4),)),
    Case("matmul.default", lambda f, c, x, y: f(x, y), (M, (2, 4, 2))),
    Case("mv.default", lambda f, c, x: f(x, c(4)), (V,)),
    Case("bmm.default", lambda f, c, x: f(x, c(2, 4, 3)), (M,), rowwise=False),
    Case("bmm.default", lambda f, c, x: f(c(2, 5, 3), x), (M,), rowwise=False),
    Case("bmm.default", lambda f, c, x, y: f(x, y), (M, (2, 4, 2))),
    Case("addmm.default", lambda f, c, x: f(c(3), x, c(4, 3)), (V,)),
    Case("addmm.default", lambda f, c, x: f(c(3), x, c(4, 3), beta=0.5, alpha=-2), (V,)),
    Case("addmm.default", lambda f, c, x, y: f(y, x, c(4, 3)), (V, (2, 3))),
    Case("baddbmm.default", lambda f, c, x: f(c(2, 3, 5), x, c(2, 4, 5)), (M,), rowwise=False),
    Case(
        "baddbmm.default",
        lambda f, c, x: f(c(2, 3, 5), x, c(2, 4, 5), beta=2, alpha=0.5),
        (M,),
        rowwise=False,
    ),
    Case("einsum.default", lambda f, c, x: f("bi,ji->bj", [x, c(3, 4)]), (V,)),
    Case("einsum.default", lambda f, c, x: f("ji,bi->bj", [c(3, 4), x]), (V,)),
    Case("einsum.default", lambda f, c, x: f("bi->b", [x]), (V,)),
    Case("einsum.default", lambda f, c, x, y: f("bij,bjk->bik", [x, y]), (M, (2, 4, 2))),
    Case("einsum.default", lambda f, c, x: f("...i,ji->...j", [x, c(3, 4)]), (M,)),
]

CONVOLUTION = [
    Case("conv1d.default", lambda f, c, x: f(x, c(3, 2, 3), c(3)), (S1,)),
    Case("conv1d.default", lambda f, c, x: f(x, c(4, 1, 2), None, [2], [1], [2], 2), (S1,)),
    Case("conv1d.padding", lambda f, c, x: f(x, c(3, 2, 4), None, [1], "same"), (S1,)),
    Case("conv2d.default", lambda f, c, x: f(x, c(3, 2, 3, 2), c(3)), (S2,)),
    Case("conv2d.default", lambda f, c, x: f(x, c(2, 1, 2, 3), c(2), [2, 1], [1, 2], [1, 2], 2), (S2,)),
    Case("conv2d.default", lambda f, c, x: f(x, c(2, 2, 2, 2), None, [3, 2]), (S2,)),
    Case("conv2d.padding", lambda f, c, x: f(x, c(3, 2, 2, 3), c(3), [1, 1], "same", [2, 1]), (S2,)),
    Case("conv2d.padding", lambda f, c, x: f(x, c(3, 2, 2, 3), c(3), [2, 2], "valid"), (S2,)),
    Case("conv3d.default", lambda f, c, x: f(x, c(2, 2, 2, 3, 2), c(2), [1, 2, 1], [0, 1, 1]), (S3,)),
    Case("conv3d.padding", lambda f, c, x: f(x, c(2, 2, 2, 1, 2), None, [1, 1, 1], "same"), (S3,)),
    Case("conv_transpose1d.default", lambda f, c, x: f(x, c(2, 3, 3), c(3), [2], [1], [1]), (S1,)),
    Case("conv_transpose2d.input", lambda f, c, x: f(x, c(2, 3, 3, 2), c(3)), (S2,)),
    Case(
        "conv_transpose2d.input",
        lambda f, c, x: f(x, c(2, 1, 3, 2), c(2), [2, 2], [1, 0], [1, 1], 2, [1, 2]),
        (S2,),
    ),
    # padding of the output as long as the stride
    Case("conv_transpose2d.input", lambda f, c, x: f(x, c(2, 1, 2, 2), None, [1, 2], [0, 0], [1, 0], 1, [2, 2]), (S2,)),
    Case("conv_transpose3d.input", lambda f, c, x: f(x, c(2, 1, 2, 2, 1), None, [2, 1, 1]), (S3,)),
]


def _norm(f: Any, c: Constants, x: Any, *rest: Any) -> Any:
    result = f(x, c(2), c(2), c(2), c(2, low=0.5, high=2), *rest)
    return result[0] if isinstance(result, tuple) else result


NORMALIZATION = [
    Case("_native_batch_norm_legit_no_training.default", lambda f, c, x: _norm(f, c, x, 0.1, 0.125), (S2,)),
    Case(
        "_native_batch_norm_legit_no_training.default",
        lambda f, c, x: _first(f(x, None, None, c(4), c(4, low=0.5, high=2), 0.1, 0.125)),
        (V,),
    ),
    Case("instance_norm.default", lambda f, c, x: _norm(f, c, x, False, 0.1, 0.125, False), (S2,)),
]


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, (tuple, list)) else result


POOLING = [
    *[
        Case(f"max_pool{d}d.default", lambda f, c, x, d=d: f(x, [3] * d, [2] * d, [1] * d), (s,))
        for d, s in ((1, S1), (2, S2), (3, S3))
    ],
    Case("max_pool2d.default", lambda f, c, x: f(x, [2, 2], [1, 2], [0, 0], [2, 1], True), (S2,)),
    Case("max_pool2d_with_indices.default", lambda f, c, x: _first(f(x, [2, 2])), (S2,)),
    Case("max_pool3d_with_indices.default", lambda f, c, x: _first(f(x, [2, 2, 2])), (S3,)),
    *[
        Case(f"adaptive_max_pool{d}d.default", lambda f, c, x, d=d: _first(f(x, [3] * d)), (s,))
        for d, s in ((1, S1), (2, S2), (3, S3))
    ],
    *[
        Case(f"avg_pool{d}d.default", lambda f, c, x, d=d: f(x, [3] * d, [2] * d, [1] * d), (s,))
        for d, s in ((1, S1), (2, S2), (3, S3))
    ],
    Case("avg_pool1d.default", lambda f, c, x: f(x, [2]), (S1,)),
    Case("avg_pool2d.default", lambda f, c, x: f(x, [3, 2], [2, 2], [1, 1], True, False), (S2,)),
    Case("avg_pool2d.default", lambda f, c, x: f(x, [3, 3], [2, 2], [0, 0], False, True, 2), (S2,)),
    *[
        Case(f"adaptive_avg_pool{d}d.default", lambda f, c, x, d=d: f(x, [3] * d), (s,))
        for d, s in ((1, S1), (2, S2), (3, S3))
    ],
    Case("adaptive_avg_pool2d.default", lambda f, c, x: f(x, [1, 1]), (S2,)),
    Case("adaptive_avg_pool1d.default", lambda f, c, x: f(x, [9]), (S1,)),
    Case("_adaptive_avg_pool2d.default", lambda f, c, x: f(x, [3, 4]), (S2,)),
    Case("_adaptive_avg_pool3d.default", lambda f, c, x: f(x, [2, 2, 2]), (S3,)),
    Case("upsample_linear1d.vec", lambda f, c, x: f(x, None, False, [2.0]), (S1,)),
    Case("upsample_linear1d.default", lambda f, c, x: f(x, [10], True), (S1,)),
    Case("upsample_bilinear2d.vec", lambda f, c, x: f(x, None, False, [2.0, 1.5]), (S2,)),
    Case("upsample_bilinear2d.vec", lambda f, c, x: f(x, [7, 4], True, None), (S2,)),
    Case("upsample_bilinear2d.default", lambda f, c, x: f(x, [7, 4], False), (S2,)),
    Case("upsample_trilinear3d.vec", lambda f, c, x: f(x, [3, 4, 5], False, None), (S3,)),
    Case("upsample_trilinear3d.default", lambda f, c, x: f(x, [3, 4, 5], False), (S3,)),
]
for _d, _s in ((1, S1), (2, S2), (3, S3)):
    for _name in (f"upsample_nearest{_d}d", f"_upsample_nearest_exact{_d}d"):
        POOLING.append(Case(f"{_name}.vec", lambda f, c, x, d=_d: f(x, None, [2.0] * d), (_s,)))
        POOLING.append(Case(f"{_name}.vec", lambda f, c, x, d=_d: f(x, [5] * d, None), (_s,)))
        POOLING.append(Case(f"{_name}.default", lambda f, c, x, d=_d: f(x, [6] * d), (_s,)))

SELECTION = [
    *[
        Case(op, lambda f, c, x: f(x, c(3)))
        for op in (
            "maximum.default",
            "minimum.default",
            "max.other",
            "min.other",
            "fmax.default",
            "fmin.default",
        )
    ],
    Case("maximum.default", lambda f, c, x, y: f(x, y), ((2, 3), (2, 3))),
    Case("minimum.default", lambda f, c, x, y: f(y, x), ((2, 3), (2, 1))),
    *[Case(f"{op}.Scalar", lambda f, c, x: f(x, 0.5), smooth=False) for op in ("gt", "ge", "lt", "le", "eq", "ne")],
    *[
        Case(f"{op}.Tensor", lambda f, c, x, y: f(x, y), ((2, 3), (2, 3)), smooth=False)
        for op in ("gt", "ge", "lt", "le", "eq", "ne")
    ],
    *[Case(f"{op}.Tensor", lambda f, c, x: f(c(3), x), smooth=False) for op in ("gt", "le")],
    Case("logical_not.default", lambda f, c, x: f(positive(x)), smooth=False),
    Case("bitwise_not.default", lambda f, c, x: f(positive(x)), smooth=False),
    *[
        Case(op, lambda f, c, x, y: f(positive(x), positive(y)), ((2, 3), (2, 3)), smooth=False)
        for op in ("logical_and.default", "logical_or.default", "bitwise_and.Tensor", "bitwise_or.Tensor")
    ],
    Case("where.self", lambda f, c, x: f(positive(x), x, c(3)), smooth=False),
    Case("where.self", lambda f, c, x, y: f(positive(x), y, c(1)), ((2, 3), (2, 3)), smooth=False),
    Case("where.Scalar", lambda f, c, x: f(positive(x), 0.5, -1.5), smooth=False),
    Case("masked_fill.Scalar", lambda f, c, x: f(x, positive(x), 0.5), smooth=False),
    Case("where.self", lambda f, c, x: f(c(3) > 0, x, c(3))),
    Case("where.self", lambda f, c, x, y: f(c(3) > 0, y, x), ((2, 3), (2, 3))),
    Case("where.ScalarOther", lambda f, c, x: f(c(3) > 0, x, 0.5)),
    Case("where.ScalarSelf", lambda f, c, x: f(c(3) > 0, 0.5, x)),
    Case("masked_fill.Scalar", lambda f, c, x: f(x, c(3) > 0, 0.5)),
    Case("masked_fill.Tensor", lambda f, c, x: f(x, c(3) > 0, torch.tensor(0.5, dtype=c.dtype))),
]

REDUCTION = [
    Case("sum.default", rowwise=False),
    Case("mean.default", rowwise=False),
    Case("sum.dim_IntList", lambda f, c, x: f(x, [1]), (M,)),
    Case("sum.dim_IntList", lambda f, c, x: f(x, [1, 2], True), (M,)),
    Case("mean.dim", lambda f, c, x: f(x, [-1]), (M,)),
    Case("mean.dim", lambda f, c, x: f(x, [1, 2]), (M,)),
    Case("cumsum.default", lambda f, c, x: f(x, 1), (M,)),
    Case("amax.default", lambda f, c, x: f(x, [1]), (M,)),
    Case("amin.default", lambda f, c, x: f(x, [1, 2], True), (M,)),
    Case("max.default", rowwise=False),
    Case("min.default", rowwise=False),
    Case("max.dim", lambda f, c, x: _first(f(x, 1)), (M,)),
    Case("min.dim", lambda f, c, x: _first(f(x, -1, True)), (M,)),
    Case("max.dim", lambda f, c, x: f(x, 1)[1], (M,), smooth=False),
    Case("topk.default", lambda f, c, x: _first(f(x, 2)), (M,)),
    Case("sort.default", lambda f, c, x: _first(f(x)), (M,)),
    Case("sort.stable", lambda f, c, x: _first(f(x, stable=True, dim=1, descending=True)), (M,)),
    Case("cummax.default", lambda f, c, x: _first(f(x, 1)), (M,)),
    Case("cummin.default", lambda f, c, x: _first(f(x, 1)), (M,)),
    Case("aminmax.default", lambda f, c, x: list(f(x, dim=1)), (M,)),
    *[Case("linalg_vector_norm.default", lambda f, c, x, p=p: f(x, p, [1]), (M,)) for p in (1, 2, 3, float("inf"))],
    Case("linalg_vector_norm.default", lambda f, c, x: f(x, 2, [1, 2], True), (M,)),
    Case("softmax.int", lambda f, c, x: f(x, 1), (V,)),
    Case("softmax.int", lambda f, c, x: f(x, 1), (M,), low=-40.0, high=40.0),
    Case("softmax.int", lambda f, c, x: f(x, 1), ((2, 1),), smooth=False),
    Case("_softmax.default", lambda f, c, x: f(x, -1, False), (V,)),
    Case("log_softmax.int", lambda f, c, x: f(x, 1), (V,)),
    Case("log_softmax.int", lambda f, c, x: f(x, 1), (M,), low=-200.0, high=200.0),
    Case("_log_softmax.default", lambda f, c, x: f(x, 1, False), (V,)),
    Case("logsumexp.default", lambda f, c, x: f(x, [1], True), (V,)),
    Case("glu.default", lambda f, c, x: f(x, 1), (V,)),
]


def _index(*values: int) -> Tensor:
    return torch.tensor(values)


SHAPE = [
    Case("view.default", lambda f, c, x: f(x, [-1, 12]), (M,)),
    Case("reshape.default", lambda f, c, x: f(x, [-1, 12]), (M,)),
    Case("_unsafe_view.default", lambda f, c, x: f(x, [-1, 4, 3]), (M,)),
    Case("flatten.using_ints", lambda f, c, x: f(x, 1), (M,)),
    Case("unflatten.int", lambda f, c, x: f(x, 1, [2, 2]), (V,)),
    Case("unsqueeze.default", lambda f, c, x: f(x, -1)),
    Case("squeeze.default", shapes=((2, 1, 3),), rowwise=False),
    Case("squeeze.dim", lambda f, c, x: f(x, 1), ((2, 1, 3),)),
    Case("squeeze.dims", lambda f, c, x: f(x, [1, 2]), ((2, 1, 3),)),
    *_unary("clone alias contiguous detach lift_fresh_copy lift_fresh", smooth=False),
    Case("permute.default", lambda f, c, x: f(x, [0, -1, 1]), (M,)),
    Case("transpose.int", lambda f, c, x: f(x, 1, 2), (M,)),
    Case("t.default", rowwise=False),
    Case("slice.Tensor", lambda f, c, x: f(x, 1, 0, 9223372036854775807, 2), (V,)),
    Case("select.int", lambda f, c, x: f(x, 1, -1), (V,)),
    Case("narrow.default", lambda f, c, x: f(x, 1, 1, 2), (V,)),
    Case("flip.default", lambda f, c, x: f(x, [1]), (V,)),
    Case("fliplr.default", shapes=(V,)),
    Case("flipud.default", shapes=(V,), rowwise=False),
    Case("roll.default", lambda f, c, x: f(x, [1], [1]), (V,)),
    Case("rot90.default", lambda f, c, x: f(x, 1, [1, 2]), (M,)),
    Case("diagonal.default", lambda f, c, x: f(x, 0, 1, 2), (M,)),
    Case("diag_embed.default", shapes=(V,)),
    Case("tril.default", shapes=(M,)),
    Case("triu.default", lambda f, c, x: f(x, 1), (M,)),
    Case("pixel_shuffle.default", lambda f, c, x: f(x, 2), ((1, 4, 2, 3),)),
    Case("pixel_unshuffle.default", lambda f, c, x: f(x, 2), ((1, 1, 4, 2),)),
    Case("channel_shuffle.default", lambda f, c, x: f(x, 2), ((2, 4, 2, 2),)),
    Case("movedim.int", lambda f, c, x: f(x, 1, -1), (M,)),
    Case("movedim.intlist", lambda f, c, x: f(x, [1], [-1]), (M,)),
    Case("expand.default", lambda f, c, x: f(x, [-1, 3, -1]), ((2, 1, 4),)),
    Case("repeat.default", lambda f, c, x: f(x, [1, 2]), (V,)),
    Case("tile.default", lambda f, c, x: f(x, [1, 3]), (V,)),
    Case("repeat_interleave.self_int", lambda f, c, x: f(x, 2, 1), (V,)),
    Case("unfold.default", lambda f, c, x: f(x, 1, 3, 1), (V,)),
    Case("im2col.default", lambda f, c, x: f(x, [2, 2], [1, 1], [1, 0], [1, 1]), (S2,)),
    Case("index_select.default", lambda f, c, x: f(x, 1, _index(0, 2, 2)), (V,)),
    Case("index.Tensor", lambda f, c, x: f(x, [None, _index(3, 1, 1)]), (V,)),
    Case("index.Tensor", lambda f, c, x: f(x, [None, torch.tensor([True, False, True, True])]), (V,)),
    Case("index.Tensor", lambda f, c, x: f(x, [None, _index(1, 1, 1)[:, None], _index(2, 2, 2, 2)[None]]), (M,)),
    Case("gather.default", lambda f, c, x: f(x, 1, _index(0, 2, 2).expand(x.shape[0], 3)), (V,)),
    Case("take_along_dim.default", lambda f, c, x: f(x, _index(0, 2).expand(x.shape[0], 2), 1), (V,)),
    Case("_to_copy.default"),
    Case("_to_copy.default", lambda f, c, x: f(x, dtype=torch.float64), smooth=False),
    Case("_to_copy.default", lambda f, c, x: f(x, dtype=torch.float32), smooth=False),
    Case("type_as.default", lambda f, c, x: f(x, c(1))),
    Case("to.dtype", lambda f, c, x: f(x, c.dtype)),
    Case("cat.default", lambda f, c, x, y: f([x, c(1, 2).expand(x.shape[0], 2), y], 1), (V, (2, 3))),
    Case("concat.default", lambda f, c, x: f([x, x], -1), (V,)),
    Case("stack.default", lambda f, c, x, y: f([x, y], 1), (V, V)),
    Case("split.Tensor", lambda f, c, x: list(f(x, 3, 1)), (V,)),
    Case("split.sizes", lambda f, c, x: list(f(x, [1, 3], 1)), (V,)),
    Case("split_with_sizes.default", lambda f, c, x: list(f(x, [1, 3], 1)), (V,)),
    Case("chunk.default", lambda f, c, x: list(f(x, 2, 1)), (V,)),
    Case("unbind.int", lambda f, c, x: list(f(x, 1)), (V,)),
    Case("slice_scatter.default", lambda f, c, x, y: f(x, y, 1, 1, 3), (V, (2, 2))),
    Case("slice_scatter.default", lambda f, c, x: f(x, c(x.shape[0], 2), 1, 1, 3), (V,), rowwise=False),
    Case("slice_scatter.default", lambda f, c, y: f(c(y.shape[0], 4), y, 1, 1, 3), ((2, 2),), rowwise=False),
    Case("select_scatter.default", lambda f, c, x, y: f(x, y, 1, 2), (V, (2,))),
    Case("diagonal_scatter.default", lambda f, c, x, y: f(x, y, 0, 1, 2), (M, (2, 3))),
    Case("copy.default", lambda f, c, x, y: f(x, y), (V, V)),
    Case("scatter.src", lambda f, c, x, y: f(x, 1, _index(1, 3).expand(x.shape[0], 2), y), (V, (2, 2))),
    Case("scatter.value", lambda f, c, x: f(x, 1, _index(1, 3).expand(x.shape[0], 2), 0.5), (V,)),
    Case("index_put.default", lambda f, c, x, y: f(x, [None, _index(1, 3)], y), (V, (2, 2))),
    Case("pad.default", lambda f, c, x: f(x, [1, 2]), (V,)),
    Case("pad.default", lambda f, c, x: f(x, [1, 2, 0, 1], "constant", 1.5), (M,)),
    Case("pad.default", lambda f, c, x: f(x, [-1, 2]), (V,)),
    *[Case("pad.default", lambda f, c, x, m=m: f(x, [2, 1], m), (M,)) for m in ("reflect", "replicate", "circular")],
    Case("constant_pad_nd.default", lambda f, c, x: f(x, [1, 2]), (V,)),
    Case("constant_pad_nd.default", lambda f, c, x: f(x, [1, 2], -0.5), (V,)),
    *[
        Case(f"{m}_pad{d}d.default", lambda f, c, x, d=d: f(x, [1, 2] * d), (s,))
        for m in ("reflection", "replication")
        for d, s in ((1, S1), (2, S2), (3, S3))
    ],
]

CONSTANT = [
    *_unary("zeros_like ones_like", smooth=False),
    Case("full_like.default", lambda f, c, x: f(x, 2.0), smooth=False),
    Case("empty_like.default", lambda f, c, x: _shape_only(f(x)), smooth=False),
    Case("new_zeros.default", rowwise=False, call=lambda f, c, x: f(x, [2, 2]), smooth=False),
    Case("new_ones.default", rowwise=False, call=lambda f, c, x: f(x, [2, 2]), smooth=False),
    Case("new_full.default", rowwise=False, call=lambda f, c, x: f(x, [2, 2], 0.5), smooth=False),
    Case("new_empty.default", rowwise=False, call=lambda f, c, x: _shape_only(f(x, [2, 2])), smooth=False),
    Case("fill.Scalar", lambda f, c, x: f(x, 0.5), smooth=False),
    Case("fill.Tensor", lambda f, c, x: f(x, torch.tensor(0.5, dtype=c.dtype)), smooth=False),
]


def _shape_only(value: Tensor) -> Tensor:
    return torch.zeros_like(value)  # uninitialised memory


FUSED = [
    Case(ABOUT, lambda f, c, x: f(x, c(3), 8.0)),
    Case(ABOUT, lambda f, c, x, y: f(x, y, 100.0), ((2, 3), (2, 1)), smooth=False),
]

CASES = [
    *ACTIVATIONS,
    *ARITHMETIC,
    *LINEAR,
    *CONVOLUTION,
    *NORMALIZATION,
    *POOLING,
    *SELECTION,
    *REDUCTION,
    *SHAPE,
    *CONSTANT,
    *FUSED,
]
