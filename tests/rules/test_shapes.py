"""Layers of any shape, drawn by hypothesis: strides, paddings, dilations, groups, windows, products."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import Tensor

from surebound.flags import exact_kernels
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Context, Rule, find
from tests.rules.harness import generator

FLOAT = torch.float32
sizes = st.integers(1, 3)


def _rule(op: str) -> Rule:
    rule = find(op)
    assert rule is not None
    return rule


def _box(*shape: int) -> Interval:
    g = generator(sum(shape))
    low = torch.randn(shape, generator=g)
    return Interval(low, low + torch.rand(shape, generator=g) * torch.randint(0, 2, shape, generator=g))


def _check(op: str, operator: Any, x: Interval, *args: Any) -> None:
    """float32 and (as exact) float64 results at corners and inside are within the deployed bounds; adjoint is vjp."""
    rule = _rule(op)
    g = generator(1)
    with exact_kernels():
        found = rule.interval(Context(Soundness.DEPLOYED), x, *args)
    wide = [arg.double() if isinstance(arg, Tensor) else arg for arg in args]
    for i in range(5):
        t = torch.rand(x.shape, generator=g)
        point = torch.where(t.round() > 0, x.upper, x.lower) if i % 2 else x.lower + (x.upper - x.lower) * t
        for value in (operator(point, *args).double(), operator(point.double(), *wide)):
            assert value.shape == found.shape
            assert bool(((found.lower.double() <= value) & (value <= found.upper.double())).all())
    if rule.affine is not None:
        a = torch.randn((2, *found.shape), generator=g, dtype=torch.float64)
        pull = torch.func.vjp(lambda v: operator(v, *wide), x.center.double())[1]
        back = rule.affine.adjoint(a, x.shape, *wide)
        assert torch.allclose(back, torch.stack([pull(row)[0] for row in a]), atol=1e-10)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[int, list[int], tuple[int, ...], tuple[int, ...], list[Any]]:
    """Rank, sizes, weight's and bias's shape, and the other arguments."""
    rank = draw(st.integers(1, 3))
    groups, per_in, per_out = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel, stride, padding, dilation = ([draw(sizes) for _ in range(rank)] for _ in range(4))
    padding = [min(p, 2) for p in padding]
    size = [draw(st.integers(0, 3)) + d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    weight = (groups * per_out, per_in, *kernel)
    return rank, [2, groups * per_in, *size], weight, (groups * per_out,), [stride, padding, dilation, groups]


@given(convolutions(), st.booleans())
def test_convolutions(drawn: tuple[int, list[int], tuple[int, ...], tuple[int, ...], list[Any]], bias: bool) -> None:
    rank, shape, weight, outputs, rest = drawn
    g = generator(5)
    w = torch.randn(weight, generator=g)
    b = torch.randn(outputs, generator=g) if bias else None
    operator = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    _check(f"aten.conv{rank}d.default", operator, _box(*shape), w, b, *rest)


@given(convolutions(), st.booleans())
def test_transposed_convolutions(
    drawn: tuple[int, list[int], tuple[int, ...], tuple[int, ...], list[Any]], bias: bool
) -> None:
    rank, shape, weight, _, (stride, padding, dilation, groups) = drawn
    per_out, g = weight[0] // groups, generator(6)
    w = torch.randn((shape[1], per_out, *weight[2:]), generator=g)
    b = torch.randn(per_out * groups, generator=g) if bias else None
    output_padding = [max(0, min(1, s - 1)) for s in stride]
    padding = [min(p, d * (k - 1)) for p, d, k in zip(padding, dilation, weight[2:], strict=True)]
    operator = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    suffix = "default" if rank == 1 else "input"
    rest = (stride, padding, output_padding, groups, dilation)
    _check(f"aten.conv_transpose{rank}d.{suffix}", operator, _box(*shape), w, b, *rest)


@given(st.integers(1, 3), st.data())
def test_average_pooling(rank: int, data: st.DataObject) -> None:
    kernel = [data.draw(sizes) for _ in range(rank)]
    stride = [data.draw(sizes) for _ in range(rank)]
    padding = [data.draw(st.integers(0, k // 2)) for k in kernel]
    size = [k + data.draw(st.integers(0, 3)) for k in kernel]
    operator = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    op = f"aten.avg_pool{rank}d.default"
    _check(
        op,
        operator,
        _box(2, 2, *size),
        kernel,
        stride,
        padding,
        data.draw(st.booleans()),
        data.draw(st.booleans()),
    )
    target = [data.draw(st.integers(1, 4)) for _ in range(rank)]
    adaptive = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1]
    _check(f"aten.adaptive_avg_pool{rank}d.default", adaptive, _box(2, 2, *size), target)


@given(n=st.integers(1, 40), m=sizes, k=sizes, transpose=st.booleans())
def test_products(n: int, m: int, k: int, transpose: bool) -> None:
    g = generator(7)
    weight = torch.randn((n, m), generator=g)
    _check("aten.matmul.default", torch.matmul, _box(2, k, n), weight)
    rule = _rule("aten.matmul.default")
    x, y = _box(2, k, n), _box(2, n, m)
    pairs = [(weight.t(), y)] if transpose else [(x, y), (x, x.select(lambda v: v.mT))]
    for left, right in pairs:
        found = rule.interval(Context(Soundness.DEPLOYED), left, right)
        for _ in range(4):
            a = _inside(left, g)
            b = a.mT if not transpose and right.shape == a.mT.shape and right is not y else _inside(right, g)
            for value in ((a @ b).double(), a.double() @ b.double()):
                assert bool(((found.lower.double() <= value) & (value <= found.upper.double())).all())


def _inside(value: Any, g: torch.Generator) -> Tensor:
    if isinstance(value, Tensor):
        return value
    t = torch.rand(value.shape, generator=g)
    return torch.where(
        t < 0.3, value.lower, torch.where(t > 0.7, value.upper, value.lower + (value.upper - value.lower) * t)
    )


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data())
def test_reductions(shape: list[int], data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(1, len(shape) - 1), min_size=1, unique=True))
    keep = data.draw(st.booleans())
    _check("aten.sum.dim_IntList", torch.sum, _box(*shape), dims, keep)
    _check("aten.mean.dim", torch.mean, _box(*shape), dims, keep)
    _check("aten.amax.default", torch.amax, _box(*shape), dims, keep)
    _check("aten.cumsum.default", torch.cumsum, _box(*shape), dims[0])
    _check("aten.softmax.int", torch.softmax, _box(*shape), dims[0])
    _check("aten.log_softmax.int", torch.log_softmax, _box(*shape), dims[0])
    _check("aten.logsumexp.default", torch.logsumexp, _box(*shape), dims, keep)
