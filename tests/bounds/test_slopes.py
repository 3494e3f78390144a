"""Slopes that float32 cannot hold, in float64 networks: exact where a unit's sign is known, in every linear method."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.reduced.narrowing import folded, narrowed, with_sign
from surebound.bounds.reduced.passes import bounds_of_rows
from surebound.bounds.reduced.reduction import reduce_network
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness

#: Larger and smaller than their float32 neighbours: a bound from either side would be crossed.
SLOPES = (0.01, 0.1, 1 / 3, 0.7, 1.7)


def unit(slope: float) -> nn.Sequential:
    """One LeakyReLU between weights of 1."""
    layers = [nn.Linear(1, 1, bias=False, dtype=torch.float64).requires_grad_(False) for _ in range(2)]
    for layer in layers:
        layer.weight.fill_(1.0)
    return nn.Sequential(layers[0], nn.LeakyReLU(slope), layers[1]).eval()


@pytest.mark.parametrize("method", ["crown", "crown-ibp", "alpha-crown", "zonotope", "symbolic", "hybrid"])
@pytest.mark.parametrize("slope", SLOPES)
def test_no_margin_is_below_the_exact_one(method: str, slope: float) -> None:
    for low, high in ((-2.5, -1.5), (-3.0, 1.0)):
        box = sb.Box(*(torch.tensor([[end]], dtype=torch.float64) for end in (low, high)))
        for sign in (1.0, -1.0):
            spec = sb.LinearSpec(torch.tensor([[sign]], dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
            values = [Fraction(slope) * Fraction(x) if x < 0 else Fraction(x) for x in (low, high, min(high, 0.0))]
            exact = max(Fraction(sign) * value for value in values)
            found = sb.worst_margins(unit(slope), box, spec=spec, method=method, soundness="real")
            assert Fraction(found.item()) >= exact, (low, high, sign)


@pytest.mark.parametrize("slope", SLOPES[:-1])
def test_signs_and_foldings_keep_the_slope(slope: float) -> None:
    """Over the half where the unit is negative, or a part of the box where it is, with and without its column."""
    net = unit(slope)
    low, high = torch.tensor([[-3.0]], dtype=torch.float64), torch.tensor([[1.0]], dtype=torch.float64)
    both = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    whole = reduce_network(program_of(net, low), Interval(low, high), both, Soundness.REAL)
    split = with_sign(whole, 0, -1)
    part = narrowed(whole, low[0], torch.tensor([-1.0], dtype=torch.float64))
    assert folded(part).unstable == 0
    for reduced, end in ((split, 0.0), (folded(split), 0.0), (part, -1.0), (folded(part), -1.0)):
        exact = [Fraction(slope) * Fraction(end), -Fraction(slope) * Fraction(-3)]
        found: Tensor = bounds_of_rows(reduced).upper
        assert all(Fraction(bound) >= value for bound, value in zip(found.tolist(), exact, strict=True))
        if end:
            assert float(found[0]) < 0.0, "the sign of the slope's side is used"
