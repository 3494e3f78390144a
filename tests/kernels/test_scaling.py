"""BatchNorm of a training step: compiled sums and gradients against those of PyTorch, for any number of threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surebound.kernels import scaling

SHAPES = [(1, 3), (64, 16), (65, 5), (1000, 33)]  # rows and columns: less than a piece, one, a row more, many


pytestmark = pytest.mark.usefixtures("always")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_mean_and_variance(shape: tuple[int, int]) -> None:
    rows = draw(*shape) + 100.0  # far from 0: a variance from the mean of squares would be lost
    found = scaling.column_moments(rows)
    for mine, wide in zip(found, scaling.column_moments.reference(rows.double()), strict=True):
        torch.testing.assert_close(mine.double(), wide, rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums(shape: tuple[int, int], parts: int) -> None:
    rows, columns = shape
    g, both = draw(parts * rows, columns), draw(2 * rows, columns, seed=1)
    g_radius, radius = draw(*shape, seed=2), draw(*shape, seed=3).abs()
    found = scaling.column_sums(g, both[-g.shape[0] :], g_radius, radius)
    wide = scaling.column_sums.reference(*(v.double() for v in (g, both[-g.shape[0] :], g_radius, radius)))
    for mine, theirs in zip(found, wide, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5 * rows**0.5)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("flows", [False, True])
def test_gradients(parts: int, flows: bool) -> None:
    rows, columns = 70, 9
    g, both, scale = draw(parts * rows, columns), draw(2 * rows, columns, seed=1), draw(columns, seed=2)
    slope, offset = (draw(columns, seed=3), draw(columns, seed=4)) if flows else (None, None)
    found = scaling.scaled_gradient(g, both, rows, scale, slope, offset)
    torch.testing.assert_close(found, scaling.scaled_gradient.reference(g, both, rows, scale, slope, offset))


def test_the_number_of_threads_changes_no_bit() -> None:
    g, both, radius = draw(4000, 32), draw(4000, 32, seed=1), draw(2000, 32, seed=2)
    before = torch.get_num_threads()
    found: list[list[Tensor]] = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            moments, sums = scaling.column_moments(both), scaling.column_sums(g, both, radius, radius)
            found.append([*moments, *sums])
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *found))
