"""Networks that compute NaN somewhere in a region: no method proves anything of them, whatever comes after the NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear.backward import maximum
from surebound.interval import Interval, intersect
from surebound.numerics import Soundness, defined, no_information

METHODS = ("interval", "zonotope", "symbolic", "crown-ibp", "crown", "alpha-crown")
#: Functions that make a finite number of every number.
BOUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "clamp": lambda v: v.clamp(-1, 1),
    "sigmoid": torch.sigmoid,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "sin": torch.sin,
    "atan": torch.atan,
    "erf": torch.erf,
    "extremes": lambda v: torch.minimum(torch.maximum(v, torch.tensor(-1.0)), torch.tensor(1.0)),
    "two ReLUs": lambda v: F.relu(2 - F.relu(v)),
}


def overflows(x: Tensor) -> Tensor:
    return x @ torch.tensor([[3e38, 1.0], [-3e38, 1.0]])


#: Values that may be NaN, of two inputs within 4 of 6.
SOURCES: dict[str, Callable[[Tensor], Tensor]] = {
    "inf - inf": lambda x: torch.exp(20 * x) - torch.exp(20 * x),
    "0 inf": lambda x: (x - 6) * torch.exp(20 * x),
    "inf / inf": lambda x: torch.exp(20 * x) / torch.exp(20 * x),
    "a sum": overflows,
    "softmax": lambda x: torch.softmax(torch.exp(20 * x), 1),
    "log_softmax": lambda x: torch.log_softmax(torch.exp(20 * x), 1),
    "a sine": lambda x: torch.sin(torch.exp(20 * x)),
}


class Undefined(nn.Module):
    """Class 0 wins by 4.8 at least wherever the outputs are numbers."""

    def __init__(self, source: str, bounded: str, last: bool) -> None:
        super().__init__()
        self.source, self.bounded = SOURCES[source], BOUNDED[bounded]
        self.last = nn.Linear(2, 2) if last else None
        if self.last is not None:
            self.last.weight.data, self.last.bias.data = 0.1 * torch.eye(2), torch.tensor([5.0, 0.0])
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bounded(self.source(x))
        return h * 0.1 + torch.tensor([5.0, 0.0]) if self.last is None else self.last(h)


@pytest.mark.parametrize("last", [False, True], ids=["shifted", "linear"])
@pytest.mark.parametrize("bounded", BOUNDED)
@pytest.mark.parametrize("source", SOURCES)
def test_what_may_be_nan_is_never_proved(source: str, bounded: str, last: bool) -> None:
    net, x, labels = Undefined(source, bounded, last).eval(), torch.full((1, 2), 6.0), torch.tensor([0])
    if source != "a sum":  # there it depends on how a library sums: products first, or fused
        assert bool(net(torch.tensor([[10.0, 10.0], [6.0, 6.0], [10.0, 2.0]])).isnan().any())
    for method in METHODS:
        for mode in ("real", "deployed"):
            margins = sb.worst_margins(net, sb.LinfBall(x, 4), labels, method=method, soundness=mode)
            assert not bool((margins <= 0).all()), (method, mode)


def test_the_same_networks_are_proved_where_they_compute_numbers() -> None:
    """Within 1/10 of 1/10 nothing overflows, so the test above does not pass for nothing."""
    x, labels = torch.full((1, 2), 0.1), torch.tensor([0])
    for source in SOURCES:
        if source == "a sum":
            continue
        for method in METHODS:
            net = Undefined(source, "tanh", True).eval()
            margins = sb.worst_margins(net, sb.LinfBall(x, "1/10"), labels, method=method)
            assert bool((margins <= 0).all()), (source, method)


def test_ends_that_may_stand_for_nan() -> None:
    inf, nan = math.inf, math.nan
    lower = torch.tensor([-inf, -inf, 0.0, nan, 1.0, -inf, 2.0])
    upper = torch.tensor([inf, 0.0, inf, 1.0, nan, -inf, 3.0])
    odd = [True, False, False, True, True, False, False]
    for end in defined(lower, upper):
        assert end.isnan().tolist() == odd
    low, high = no_information(lower, upper)
    assert low.tolist() == [-inf, -inf, 0.0, -inf, -inf, -inf, 2.0]
    assert high.tolist() == [inf, 0.0, inf, inf, inf, -inf, 3.0]


def test_an_intersection_keeps_what_may_be_nan() -> None:
    known = Interval(torch.tensor([math.nan, 0.0, -math.inf]), torch.tensor([math.nan, 1.0, math.inf]))
    other = Interval(torch.tensor([-1.0, math.nan, -1.0]), torch.tensor([1.0, 0.5, 1.0]))
    both = intersect(known, other)
    assert both.lower[0].isnan() and both.upper[0].isnan()
    assert both.lower[1:].tolist() == [0.0, -1.0]
    assert both.upper[1:].tolist() == [0.5, 1.0]


def test_margins_of_unknown_outputs_are_unknown_whatever_the_sign() -> None:
    """A NaN at the end that a specification does not use counts as well."""
    box = Interval(torch.tensor([[math.nan, 0.0]]), torch.tensor([[1.0, 1.0]]))
    a = torch.tensor([[[1.0, 1.0]], [[-1.0, 1.0]]])
    found = maximum(a, box, torch.zeros(2, 1, dtype=torch.float64), Soundness.DEPLOYED)
    assert found.isnan().flatten().tolist() == [True, True]


@pytest.mark.parametrize(
    "product",
    [
        lambda x: torch.relu(x - 200) * torch.exp(x),
        lambda x: torch.exp(-torch.exp(x)) * torch.exp(x),
        lambda x: torch.sigmoid(-torch.exp(x)) * torch.exp(x),
        lambda x: torch.relu(x - 200).mul_(torch.exp(x)),
        lambda x: torch.exp(x) * torch.rsqrt((torch.exp(x) ** 2).mean(1, keepdim=True)),
    ],
)
def test_zero_times_infinity_hidden_by_a_clamp(product: Callable[[Tensor], Tensor]) -> None:
    """[0, a] times [0, inf] may be NaN: no bounded function behind it makes it a number again."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return product(x).clamp(-5, 5)

    box = sb.Box(torch.zeros(1, 2), torch.full((1, 2), 100.0))
    assert bool(Net()(box.upper).isnan().any())
    bounds = sb.interval_bounds(Net(), box)
    assert not bool((bounds.lower.isfinite() & bounds.upper.isfinite()).all())
    for method in ("interval", "crown"):
        margins = sb.worst_margins(Net(), box, spec=sb.LinearSpec(torch.eye(2), torch.full((2,), -9.0)), method=method)
        assert not bool((margins <= 0).all())
