"""Rows back through lines and to a box: compiled against the same passes in PyTorch, in every order of memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from surebound.kernels.products import Conv
from surebound.rules.adjoint_gradient import convolution_adjoint
from surebound.rules.relax.gradient import along, largest, pull_lines

S, B, SHAPE = 3, 4, (5, 6, 3)


pytestmark = pytest.mark.usefixtures("always")


def draw(*shape: int, last: bool = False) -> Tensor:
    """With channels (third axis from the end) innermost in memory, or not."""
    value = torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))
    return value.movedim(-3, -1).contiguous().movedim(-1, -3) if last else value


@pytest.mark.parametrize(("rows_last", "slopes_last"), [(False, False), (True, True), (False, True), (True, False)])
@pytest.mark.parametrize("two", [False, True])
def test_lines_and_their_gradients(
    switch: Callable[[bool], None], rows_last: bool, slopes_last: bool, two: bool
) -> None:
    a = draw(S, B, *SHAPE, last=rows_last)
    upper, top, lower = (draw(B, *SHAPE, last=slopes_last) * k for k in (1, 2, 3))
    g, go, more = torch.randn(S, B, *SHAPE), torch.randn(S, B), torch.rand(B, dtype=torch.float64)
    found = []
    for on in (True, False):
        switch(on)
        leaves = [v.clone(memory_format=torch.preserve_format).requires_grad_() for v in (a, lower, upper, top)]
        back, offset = pull_lines(leaves[0], leaves[1] if two else None, leaves[2], leaves[3], more)
        ((back * g).sum() + (offset * go).sum()).backward()
        found.append([back, offset, *(v.grad for v in leaves if v.grad is not None)])
    assert len(found[0]) == 5 + two
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


def test_largest_values_over_a_box(switch: Callable[[bool], None]) -> None:
    center, radius = torch.randn(B, *SHAPE), torch.rand(B, *SHAPE)
    found = []
    for on in (True, False):
        switch(on)
        a = draw(S, B, *SHAPE).requires_grad_()
        best = largest(a, center, radius)
        found.append([best, *torch.autograd.grad(best.square().sum(), a)])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-4)


def test_the_adjoint_of_a_small_window(switch: Callable[[bool], None]) -> None:
    """Against the gradient of the convolution itself, whose gradients PyTorch knows."""
    a, w = torch.randn(6, 8, 4, 3, requires_grad=True), torch.randn(8, 2, 3, 4, requires_grad=True)
    x, g = torch.zeros(6, 2, 10, 8, requires_grad=True), torch.randn(6, 2, 10, 8)
    value = torch.conv2d(x, w, stride=2)
    (expected,) = torch.autograd.grad(value, x, a, create_graph=True)
    wanted = torch.autograd.grad((expected * g).sum(), (a, w))
    for on in (True, False):
        switch(on)
        back = convolution_adjoint(a, w, 2, (10, 8), Conv((2, 2), (0, 0), (1, 1)))
        torch.testing.assert_close(back, expected, rtol=1e-4, atol=1e-4)
        for mine, theirs in zip(torch.autograd.grad((back * g).sum(), (a, w)), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_a_constant_along_rows_and_its_gradients() -> None:
    a = torch.randn(2, 3, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    v = torch.randn(1, 4, 1, 1, dtype=torch.float64, requires_grad=True)

    def both(x: Tensor, y: Tensor) -> Tensor:
        total, same = along(x, y)
        return total.sin().sum() + same.square().sum()

    assert torch.autograd.gradcheck(both, (a, v))
    torch.testing.assert_close(along(a, v)[0], (a * v).flatten(2).sum(2))
