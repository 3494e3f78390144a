"""Regularisers and initialisations, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from surebound.bounds.training.engine import Moments
from surebound.errors import ConfigError
from surebound.interval import Interval
from surebound.train.initialise import INITIALISERS
from surebound.train.regularise import BoundRegulariser


def bounds(lower: list[float], upper: list[float]) -> Moments:
    return Moments.of(Interval(torch.tensor([lower]), torch.tensor([upper])))


def test_tightness_by_hand() -> None:
    layers = [bounds([0.0, -1.0], [1.0, 2.0]), bounds([0.0, 0.0], [0.1, 0.1])]  # mean radii 1.0 and 0.05
    penalty = BoundRegulariser(balance=False)(layers, torch.tensor(0.1))
    assert penalty.item() == pytest.approx(((0.5 - 0.1) / 0.5 + 0.0) / 2)  # 0.1/0.05 is above the tolerance


def test_input_scale_is_that_of_the_normalised_input() -> None:
    layer = [bounds([0.0, -1.0], [1.0, 2.0])]
    scaled = BoundRegulariser(balance=False, input_scale=5.0)(layer, torch.tensor(0.02))
    assert scaled.item() == pytest.approx((0.5 - 0.1) / 0.5)


def test_balance_by_hand() -> None:
    # one active unit with centre 1, one inactive with centre -4, one unstable with centre 0: mean -1
    layer = bounds([0.5, -4.5, -1.0], [1.5, -3.5, 1.0])
    evenness_of_means, evenness_of_spreads = 1 / 4, 4 / 9
    expected = ((0.5 - evenness_of_means) + (0.5 - evenness_of_spreads)) / 0.5
    penalty = BoundRegulariser(tightness=False)([layer], torch.tensor(0.1))
    assert penalty.item() == pytest.approx(expected, rel=1e-6)


def evenness(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.minimum(a / b, b / a)


def test_value_and_gradients_are_those_of_the_formulas() -> None:
    """Shi et al. 2021, section 4.3, written out with automatic differentiation."""
    draws = torch.Generator().manual_seed(0)
    center = (torch.randn(6, 4, 5, 5, generator=draws) + 0.5).requires_grad_()
    radius = (0.4 * torch.rand(6, 4, 5, 5, generator=draws)).requires_grad_()
    input_radius, tolerance = torch.tensor(0.05), 0.9
    layer = Moments.of(Interval.around(center, radius))
    penalty = BoundRegulariser(tolerance=tolerance)([layer], input_radius)
    found = torch.autograd.grad(penalty, (center, radius))
    on, off = center - radius > 0, center + radius < 0
    spread = (center - center.mean()).square()
    expected = torch.relu(tolerance - input_radius / radius.mean()) / tolerance
    for a, b in ((center[on].sum(), -center[off].sum()), (spread[on].sum(), spread[off].sum())):
        expected = expected + torch.relu(tolerance - evenness(a, b)) / tolerance
    torch.testing.assert_close(penalty, expected)
    assert penalty > 1  # all three terms count
    for mine, theirs in zip(found, torch.autograd.grad(expected, (center, radius)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-8)


def test_nothing_stable_is_nothing_to_balance_and_never_nan() -> None:
    center = torch.zeros(1, 3, requires_grad=True)
    layer = Moments.of(Interval(center - 1, center + 1))
    penalty = BoundRegulariser(tightness=False)([layer], torch.tensor(0.1))
    assert penalty.item() == 0.0
    penalty.backward()
    assert torch.isfinite(center.grad).all()


def test_intensity_at_the_corners() -> None:
    regulariser = BoundRegulariser()
    assert [regulariser.intensity(e, 0.4) for e in (0.0, 0.1, 0.4, 0.5)] == pytest.approx([0, 0.375, 0, 0])


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="0 < tolerance <= 1"):
        BoundRegulariser(tolerance=0.0)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(8, 64, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 200))


def test_orthogonal_weights() -> None:
    model = net()
    INITIALISERS["orthogonal"](model, torch.Generator().manual_seed(0))
    rows = model[0].weight.flatten(1)  # (64, 128)
    torch.testing.assert_close(rows @ rows.T, torch.eye(64), atol=1e-5, rtol=0)
    columns = model[3].weight  # (200, 64)
    torch.testing.assert_close(columns.T @ columns, torch.eye(64), atol=1e-5, rtol=0)
    assert not model[0].bias.any()


def test_ibp_normal_keeps_the_mean_radius() -> None:
    model = net()
    INITIALISERS["ibp_normal"](model, torch.Generator().manual_seed(0))
    assert model[0].weight.std().item() == pytest.approx(math.sqrt(2 * math.pi) / 128, rel=0.05)
    assert model[3].weight.std().item() == pytest.approx(math.sqrt(2 * math.pi) / 64, rel=0.05)
    # a radius of 1 in every input becomes 2 on average, of which a ReLU lets half pass
    assert model[3].weight.abs().sum(1).mean().item() == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("name", list(INITIALISERS))
def test_weights_depend_on_the_generator_alone(name: str) -> None:
    torch.manual_seed(0)
    first = net()
    torch.manual_seed(0 if name == "keep" else 1)
    second = net()
    for model in (first, second):
        INITIALISERS[name](model, torch.Generator().manual_seed(5))
    assert torch.equal(first[0].weight, second[0].weight)
