"""One row per operator with a relaxation: how to call it and where it is defined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

WHOLE = (-1e38, 1e38)


@dataclass(frozen=True)
class Case:
    """``args`` are the operator's; the strings "x" and "y" stand for varying tensors (B, *shape)."""

    op: str
    args: tuple[Any, ...] = ("x",)
    kwargs: dict[str, Any] = field(default_factory=dict)
    domain: tuple[float, float] = WHOLE
    shape: tuple[int, ...] | None = None  # None: whatever; elementwise
    other: tuple[int, ...] | None = None  # shape of y
    y_domain: tuple[float, float] = WHOLE
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or f"{self.op}{[a for a in self.args if not isinstance(a, (str, Tensor))] or ''}"


def _unary(names: Sequence[str], domain: tuple[float, float] = WHOLE, *args: Any) -> list[Case]:
    return [Case(f"{name}.default", ("x", *args), domain=domain) for name in names]


_BELOW = torch.tensor([-0.5, 0.1, -0.3, 0.7, 0.0])
_PLACES = torch.tensor([3, 1])
_MASK = torch.tensor([True, False, True, False, True])
CASES: list[Case] = [
    *_unary(
        [
            "relu",
            "abs",
            "sigmoid",
            "tanh",
            "erf",
            "erfc",
            "atan",
            "asinh",
            "gelu",
            "silu",
            "mish",
            "hardswish",
        ]
    ),
    *_unary(["softplus", "log_sigmoid", "elu", "selu", "celu", "relu6", "hardsigmoid", "hardtanh"]),
    *_unary(["sin", "cos"], (-1e4, 1e4)),
    *_unary(["sign", "sgn", "floor", "ceil", "round", "trunc"], (-1e4, 1e4)),
    *_unary(["exp", "exp2", "expm1", "sinh", "cosh"], (-60.0, 60.0)),
    *_unary(["square"], (-1e18, 1e18)),
    *_unary(["log", "log2", "log10", "sqrt", "rsqrt"], (1e-30, 1e30)),
    *_unary(["reciprocal"], (1e-20, 1e20)),
    Case("reciprocal.default", domain=(-1e20, -1e-20), name="reciprocal of negatives"),
    *_unary(["log1p"], (-0.99, 1e30)),
    Case("leaky_relu.default"),
    Case("leaky_relu.default", ("x", 0.3)),
    Case("leaky_relu.default", ("x", -0.5)),
    Case("leaky_relu.default", ("x", 1.5)),
    Case("gelu.default", kwargs={"approximate": "tanh"}, name="gelu tanh"),
    Case("elu.default", ("x", 2.5)),
    Case("softplus.default", ("x", 3.0, 20.0)),
    Case("celu.default", ("x", 0.5)),
    Case("hardtanh.default", ("x", -0.3, 0.7)),
    Case("clamp.default", ("x", -0.1, 0.3)),
    Case("clamp.default", ("x", 0)),
    Case("clamp.default", ("x", None, 0.1)),
    Case("clip.default", ("x", 0.1, 0.2)),
    Case("clamp_min.default", ("x", 0)),
    Case("clamp_min.default", ("x", 0.1)),
    Case("clamp_max.default", ("x", -0.1)),
    Case("pow.Tensor_Scalar", ("x", 2), domain=(-1e15, 1e15)),
    Case("pow.Tensor_Scalar", ("x", 3), domain=(-1e10, 1e10)),
    Case("pow.Tensor_Scalar", ("x", 0.5), domain=(1e-20, 1e20)),
    Case("pow.Tensor_Scalar", ("x", -1.5), domain=(1e-5, 1e15)),
    Case("pow.Tensor_Scalar", ("x", -3), domain=(-1e10, -1e-3)),
    Case("prelu.default", ("x", torch.tensor([0.3]))),
    Case("prelu.default", ("x", torch.tensor([1.5])), name="prelu, concave"),
    Case("prelu.default", ("x", torch.tensor([0.3, -0.7, 1.6, 1.0])), name="prelu by channels"),
    Case("threshold.default", ("x", 0.0, 0.0)),
    Case("threshold.default", ("x", 0.1, 0.1)),
    Case("clamp.Tensor", ("x", _BELOW, _BELOW + 1), name="clamp by tensors"),
    Case("clamp.Tensor", ("x", _BELOW, _BELOW - 1), name="clamp by tensors that cross"),
    Case("clip.Tensor", ("x", None, "y"), name="clip by what varies"),
    Case("clamp_min.Tensor", ("x", "y")),
    Case("clamp_max.Tensor", ("x", _BELOW), name="clamp_max by a tensor"),
    Case("pow.Scalar", (2.5, "y"), y_domain=(-60.0, 60.0)),
    Case("pow.Scalar", (0.25, "y"), y_domain=(-30.0, 30.0)),
    Case("pow.Tensor_Tensor", (_BELOW + 1, "y"), y_domain=(-30.0, 30.0), name="powers of a tensor"),
    Case("add.Tensor", ("x", "y")),
    Case("add.Tensor", ("x", "y"), {"alpha": 0.3}, name="add alpha"),
    Case("add.Tensor", ("x", "y"), other=(1, 5), name="add broadcast"),
    Case("sub.Tensor", ("x", "y")),
    Case("sub.Tensor", ("x", "y"), {"alpha": 2}, name="sub alpha"),
    Case("rsub.Tensor", ("x", "y")),
    Case("mul.Tensor", ("x", "y"), domain=(-1e18, 1e18), y_domain=(-1e18, 1e18)),
    Case("mul.Tensor", ("x", "y"), domain=(-1e9, 1e9), y_domain=(-1e9, 1e9), other=(4, 1), name="mul broadcast"),
    Case("mul.Tensor", ("x", "x"), domain=(-1e18, 1e18), name="mul with itself"),
    Case("div.Tensor", ("x", "y"), domain=(-1e9, 1e9), y_domain=(1e-3, 1e9)),
    Case("div.Tensor", ("x", "y"), domain=(-1e9, 1e9), y_domain=(-1e9, -1e-3), name="div by negatives"),
    Case("div.Tensor", (torch.tensor(0.7), "y"), y_domain=(1e-3, 1e9), name="constant / y"),
    *[Case(f"{op}", ("x", "y")) for op in ("maximum.default", "max.other", "minimum.default", "min.other")],
    *[Case(f"{op}", ("x", "y")) for op in ("fmax.default", "fmin.default")],
    Case("maximum.default", ("x", torch.tensor(0.1)), name="maximum with a constant"),
    Case("minimum.default", (torch.tensor(-0.1), "y"), name="minimum with a constant"),
    Case("maximum.default", ("x", "y"), other=(1, 5), name="maximum broadcast"),
    Case("where.self", (_MASK, "x", "y")),
    Case("where.self", (_MASK, "x", torch.tensor(0.3)), name="where constant"),
    Case("where.ScalarOther", (_MASK, "x", 0.3)),
    Case("where.ScalarSelf", (_MASK, 0.3, "y")),
    Case("masked_fill.Scalar", ("x", _MASK, 0.1)),
    Case("masked_fill.Tensor", ("x", _MASK, torch.tensor(0.1))),
    Case("cat.default", (["x", "y"], 1)),
    Case("concat.default", (["x", "y", "x"], -1)),
    Case("cat.default", (["x", torch.full((1, 4, 2), 0.1)], 2), name="cat constant"),
    Case("stack.default", (["x", "y"], 2)),
    Case("stack.default", ([torch.full((1, 4, 5), 0.1), "y"], 1), name="stack constant"),
    Case("_to_copy.default"),
    Case("to.dtype", ("x", torch.float32)),
    Case("type_as.default", ("x", torch.zeros(1))),
    Case("slice_scatter.default", ("x", "y", 2, 1, 4), other=(4, 3)),
    Case("select_scatter.default", ("x", "y", 1, 2), other=(5,)),
    Case("diagonal_scatter.default", ("x", "y", 1, 1, 2), other=(4,)),
    Case("copy.default", ("x", "y"), other=(1, 5), name="copy broadcast"),
    Case("scatter.src", ("x", 2, _PLACES.expand(16, 4, 2), "y"), other=(4, 2)),
    Case("scatter.value", ("x", 2, _PLACES.expand(16, 4, 2), 0.3)),
    Case("index_put.default", ("x", [None, None, _PLACES], "y"), other=(4, 2)),
    Case("index_put.default", ("x", [None, None, _PLACES], "y"), other=(1, 1), name="index_put broadcast"),
    Case("amax.default", ("x", [1])),
    Case("amax.default", ("x", [1, 2], True)),
    Case("amin.default", ("x", [-1])),
    Case("softmax.int", ("x", -1)),
    Case("_softmax.default", ("x", 1, False)),
    Case("matmul.default", ("x", "y"), domain=(-1e9, 1e9), y_domain=(-1e9, 1e9), other=(5, 3)),
    Case("bmm.default", ("x", "y"), domain=(-1e9, 1e9), y_domain=(-1e9, 1e9), other=(5, 2)),
    Case(
        "matmul.default",
        ("x", "y"),
        domain=(-1e9, 1e9),
        y_domain=(-1e9, 1e9),
        shape=(2, 3, 4),
        other=(1, 4, 2),
        name="matmul broadcast",
    ),
    Case(
        "einsum.default",
        ("bij,bkj->bik", ["x", "y"]),
        domain=(-1e9, 1e9),
        y_domain=(-1e9, 1e9),
        other=(3, 5),
        name="einsum",
    ),
    Case(
        "einsum.default",
        ("bij,kj->bik", ["x", torch.randn(3, 5, generator=torch.Generator().manual_seed(0))]),
        domain=(-1e9, 1e9),
        name="einsum constant",
    ),
    Case("max.dim", ("x", 1)),
    Case("min.dim", ("x", -1, True)),
    Case("cummax.default", ("x", 1)),
    Case("cummin.default", ("x", -1)),
    Case("aminmax.default", ("x",), {"dim": 2}),
    Case("adaptive_max_pool1d.default", ("x", [2])),
    Case("adaptive_max_pool2d.default", ("x", [2, 3]), shape=(2, 5, 4)),
    Case("adaptive_max_pool3d.default", ("x", [2, 5, 1]), shape=(2, 3, 4, 3)),
    Case("max_pool1d.default", ("x", [2])),
    Case("max_pool2d.default", ("x", [2]), shape=(2, 5, 5)),
    Case("max_pool2d.default", ("x", [3, 2], [1, 2], [1, 1], [1, 1], True), shape=(2, 5, 5)),
    Case("max_pool2d.default", ("x", [2], [2], [0], [2], False), shape=(1, 6, 6)),
    Case("max_pool2d_with_indices.default", ("x", [2]), shape=(2, 4, 4)),
    Case("max_pool3d.default", ("x", [2]), shape=(1, 3, 4, 4)),
    Case("max_pool3d_with_indices.default", ("x", [2], [1]), shape=(1, 3, 3, 3)),
]


def call(case: Case, x: Any, y: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The case's arguments with x and y put in."""

    def put(value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(v, (str, Tensor)) for v in value):
            return [put(v) for v in value]
        return {"x": x, "y": y}.get(value, value) if isinstance(value, str) else value

    return tuple(put(a) for a in case.args), dict(case.kwargs)


def operator(case: Case) -> Callable[..., Any]:
    name, overload = case.op.split(".")
    found: Callable[..., Any] = getattr(getattr(torch.ops.aten, name), overload)
    return found
