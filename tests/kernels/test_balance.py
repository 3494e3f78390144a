"""Moments of stable units: values and gradients against automatic differentiation, compiled and in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from surebound.kernels import build
from surebound.kernels.balance import stable_moments


def values(count: int, layout: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    shape = (count, 5, 3, 7)
    center, radius = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    center[0, 0], radius[0, 0] = 0.0, 0.0
    if layout == "innermost":
        center, radius = (v.contiguous(memory_format=torch.channels_last) for v in (center, radius))
    return center.requires_grad_(), radius.requires_grad_()


def by_hand(center: Tensor, radius: Tensor) -> Tensor:
    wide, sums = center.double(), []
    for chosen in (center - radius > 0, center + radius < 0):
        sums += [chosen.sum().double(), wide[chosen].sum(), wide[chosen].square().sum()]
    return torch.stack([wide.sum(), radius.double().sum(), *sums])


@pytest.mark.parametrize("layout", ["plain", "innermost"])
@pytest.mark.parametrize("how", ["compiled", "pytorch"])
@pytest.mark.parametrize("count", [1, 200])  # one piece, and several
def test_moments_and_gradients(count: int, layout: str, how: str, switch: Callable[[bool], None]) -> None:
    switch(how == "compiled")
    if how == "compiled" and build.library() is None:
        pytest.skip("no C compiler here")
    given, known = values(count, layout), values(count, layout)
    found, expected = stable_moments(*given), by_hand(*known)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-9)
    weights = torch.tensor([0.3, -0.7, 5.0, 1.1, -0.2, 3.0, 0.9, 0.4], dtype=torch.float64)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for mine, theirs in zip(given, known, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-6)


def test_the_number_of_threads_changes_no_bit() -> None:
    center, radius = values(300, "plain")
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(stable_moments(center, radius))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_what_is_not_a_number_is_seen() -> None:
    center, radius = values(2, "plain")
    with torch.no_grad():
        center[1, 2, 0, 3] = torch.nan
    assert bool(stable_moments(center, radius)[0].isnan())
