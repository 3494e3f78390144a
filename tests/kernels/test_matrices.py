"""Compiled products with matrices and their gradients against float64, and where they step aside."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surebound.kernels import build, matrices
from surebound.rules.layouts import linear_layer

#: Rows, columns in, columns out: whole tiles and rests of every kind, more columns than are worked on together.
SIZES = [(100, 320, 100), (37, 600, 45), (16, 1031, 333), (257, 64, 64), (19, 4000, 17)]


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, also on a processor where they are slower and for few numbers."""
    if build.library() is None:
        pytest.skip("no C compiler here")
    monkeypatch.setattr(matrices, "_pay", lambda: True)
    monkeypatch.setattr(matrices, "FEWEST", 1)


def drawn(rows: int, columns: int, out: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values, matrix, bias and the gradient of the product."""
    draws = torch.Generator().manual_seed(rows)
    sizes = ((rows, columns), (out, columns), (out,), (rows, out))
    x, w, b, g = (torch.randn(size, generator=draws) for size in sizes)
    return x, w, b, g


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("sizes", SIZES)
def test_products_are_right_to_rounding(monkeypatch, sizes, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    x, w, b, g = drawn(*sizes)
    wide = [v.double() for v in (x, w, b, g)]
    sizes_of = [v.abs() for v in wide]
    found = [
        (matrices.matrix, (x, w, b), wide[0] @ wide[1].t() + wide[2], sizes_of[0] @ sizes_of[1].t() + sizes_of[2]),
        (matrices.matrix, (x, w, None), wide[0] @ wide[1].t(), sizes_of[0] @ sizes_of[1].t()),
        (matrices.matrix_input, (g, w), wide[3] @ wide[1], sizes_of[3] @ sizes_of[1]),
        (matrices.matrix_weight, (g, x), wide[3].t() @ wide[0], sizes_of[3].t() @ sizes_of[0]),
    ]
    for function, args, expected, total in found:
        assert function.applies(*args)
        error = (function(*args).double() - expected).abs()
        # what any order of a sum of n products may be off: n u of their sizes (docs/soundness.md)
        assert (error <= max(sizes) * 2.0**-24 * total).all(), function.name


def test_threads_change_no_bit(monkeypatch):
    x, w, b, g = drawn(*SIZES[1])
    results = []
    for threads in (1, 4):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
        results.append((matrices.matrix(x, w, b), matrices.matrix_input(g, w), matrices.matrix_weight(g, x)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda v: v.double(), "another dtype"),
        (lambda v: v.t().contiguous().t(), "columns side by side"),
        (lambda v: v[:3], "a few vectors"),
        (lambda v: v[None], "a batch of matrices"),
        (lambda v: v.clone().requires_grad_(), "a gradient wanted"),
    ],
)
def test_other_values_are_left_to_pytorch(change, why):
    x, w, _, g = drawn(*SIZES[0])
    assert matrices.matrix.applies(x, w, None)
    assert matrices.matrix_input.applies(g, w)
    assert matrices.matrix_weight.applies(g, x)
    assert not matrices.matrix.applies(change(x), w, None), why
    assert not matrices.matrix_input.applies(change(g), w), why
    assert not matrices.matrix_weight.applies(change(g), x), why


def test_few_numbers_are_left_to_pytorch(monkeypatch):
    x, w, _, _ = drawn(*SIZES[0])
    monkeypatch.setattr(matrices, "FEWEST", 100 * 320 * 100 + 1)
    assert not matrices.matrix.applies(x, w, None)


def test_a_layer_uses_them(monkeypatch):
    x, w, b, g = drawn(*SIZES[0])
    layer = linear_layer()
    mine = (layer.product(x, w, b), *layer.backward(g, x, w, True), layer.input_gradient(g, x, w))
    monkeypatch.setattr(matrices, "_pay", lambda: False)
    assert not matrices.matrix.applies(x, w, b)
    theirs = (layer.product(x, w, b), *layer.backward(g, x, w, True), layer.input_gradient(g, x, w))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert layer.backward(g, x, w, False)[0] is None
