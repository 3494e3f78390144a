"""Cauchy projections: medians against sorting, the estimate's mean and spread, gradients."""

from __future__ import annotations

import math

import pytest
import torch

from surebound.bounds.training.projections.cauchy import (
    cauchy,
    estimated_norms,
    median_of_half_cauchy,
    middle,
)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10, 33, 50, 128, 129])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled where possible, and not
def test_middle_values_are_those_of_sorting(count: int, dtype: torch.dtype) -> None:
    x = torch.randn(count, 3, 70, generator=torch.Generator().manual_seed(count), dtype=dtype)
    ordered = x.abs().sort(0).values
    expected = ordered[(count - 1) // 2 : count // 2 + 1]
    total, places = middle(x)
    torch.testing.assert_close(total, expected.sum(0), rtol=1e-6, atol=0)
    assert torch.equal(x.gather(0, places.long()).abs().sort(0).values, expected)


def test_the_expected_median_by_simulation() -> None:
    generator = torch.Generator().manual_seed(0)
    x = cauchy((7, 400_000), generator, torch.zeros((), dtype=torch.float64))
    found, _ = middle(x.unsqueeze(1))
    assert found.mean().item() == pytest.approx(median_of_half_cauchy(7), rel=0.01)
    assert median_of_half_cauchy(2) == math.inf


@pytest.mark.parametrize("count", [10, 50])
def test_the_estimate_is_unbiased_and_as_spread_as_theory_says(count: int) -> None:
    """The relative deviation of a median of k is about pi / (2 sqrt k) (Li, Hastie & Church 2007)."""
    generator = torch.Generator().manual_seed(1)
    v = torch.rand(30, generator=generator, dtype=torch.float64) - 0.5
    trials = 20_000
    columns = torch.stack([cauchy((count, 30), generator, v) @ v for _ in range(trials)], 1)  # (k, trials)
    estimates = estimated_norms(columns.unsqueeze(1))[0][0] / v.abs().sum()
    assert estimates.mean().item() == pytest.approx(1.0, abs=5 * estimates.std().item() / math.sqrt(trials))
    expected = math.pi / (2 * math.sqrt(count))
    assert expected * 0.95 < estimates.std().item() < expected * (1.1 if count == 50 else 1.4)


@pytest.mark.parametrize("count", [5, 6])
def test_gradients(count: int) -> None:
    generator = torch.Generator().manual_seed(2)
    columns = cauchy((count, 2, 3), generator, torch.zeros((), dtype=torch.float64)).requires_grad_()

    def both(x: torch.Tensor) -> torch.Tensor:
        norms, same = estimated_norms(x)
        return (norms**2).sum() + same.sin().sum()

    assert torch.autograd.gradcheck(both, columns)
