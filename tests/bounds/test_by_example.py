"""Examples that meet are found whichever they are; one number per example is a value like any other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.by_example import _seen, mixing
from surebound.bounds.margins import METHODS
from surebound.errors import BoundError
from surebound.graph import program_of

#: The semidefinite bound is for one hidden layer of ReLUs: below, on one.
ANY_NETWORK = [name for name in METHODS if name != "raghunathan"]


class Applied(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return MIXED[self.name](x)


MIXED = {
    "the middle ones": lambda x: x[torch.arange(x.shape[0]).clamp(max=1)],
    "from the third on": lambda x: x[torch.arange(x.shape[0]).clamp(max=2)],
    "from the seventh on": lambda x: x[torch.arange(x.shape[0]).clamp(max=6)],
    "all but the first": lambda x: x[(torch.arange(x.shape[0]) - 1).clamp(min=0)],
    "rotated by 3": lambda x: x.roll(3, 0),
    "rotated by 5": lambda x: x.roll(5, 0),
    "times the size of the batch": lambda x: x * x.shape[0],
    "plus the largest of all": lambda x: x + 0.1 * x.max(),
    "plus a constant of the batch": lambda x: x + torch.full((2,), 0.25) * x.shape[0],
}


@pytest.mark.parametrize("method", ANY_NETWORK)
@pytest.mark.parametrize("name", MIXED)
@torch.no_grad()
def test_examples_that_meet_are_refused_or_bounded(name: str, method: str) -> None:
    net = Applied(name)
    assert mixing(program_of(net, torch.rand(8, 2)))
    low = torch.rand(8, 2, generator=torch.Generator().manual_seed(0))
    region, labels = sb.Box(low, low + 0.1 * torch.arange(8).unsqueeze(1)), torch.zeros(8, dtype=torch.long)
    if method != "interval":
        with pytest.raises(BoundError, match="examples meet"):
            sb.worst_margins(net, region, labels, method=method)
        return
    margins = sb.worst_margins(net, region, labels)
    for x in (region.lower, region.upper, torch.cat([region.lower[:, :1], region.upper[:, 1:]], 1)):
        z = net(x)
        assert bool((z - z[:, :1] <= margins).all())


@pytest.mark.parametrize("name", MIXED)
def test_examples_that_meet_before_one_hidden_layer_are_refused_by_the_semidefinite_bound(name: str) -> None:
    net = nn.Sequential(Applied(name), nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(BoundError, match=r"examples meet|one hidden layer"):
        sb.worst_margins(
            net, sb.LinfBall(torch.rand(8, 2), "1/10"), torch.zeros(8, dtype=torch.long), method="raghunathan"
        )


class Recurrent(nn.Module):
    """Starts from zeros, one row per example, all alike: no example meets another."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 2)
        for i in range(2):
            h = torch.relu(self.cell(torch.cat([x[:, 2 * i : 2 * i + 2], h], 1)))
        return h


def test_constants_with_a_row_per_example_that_are_alike_do_not_mix() -> None:
    net, x = Recurrent(), torch.rand(3, 4)
    assert not mixing(program_of(net, x))
    sb.worst_margins(net, sb.LinfBall(x, "1/100"), torch.tensor([0, 1, 0]), method="crown")


class OneNumber(nn.Module):
    """Values (B,) between others."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([ONE_NUMBER[self.name](x[:, 0], x[:, 1]), x[:, 2]], 1)


ONE_NUMBER = {
    "product": lambda a, b: a * b,
    "relu": lambda a, b: torch.relu(a - b),
    "curved": lambda a, b: torch.sigmoid(3 * a) - b,
    "maximum": lambda a, b: torch.stack([a, b], 1).amax(1),
    "larger": lambda a, b: torch.maximum(a, b),
    "clamped": lambda a, b: torch.clamp(a + b, 0.5, 0.8),
    "quotient": lambda a, b: a / (b + 2),
}


@pytest.mark.parametrize("method", ANY_NETWORK)
@pytest.mark.parametrize("name", ONE_NUMBER)
@torch.no_grad()
def test_one_number_per_example_is_bounded_by_every_method(name: str, method: str) -> None:
    net, draw = OneNumber(name), torch.Generator().manual_seed(0)
    region, labels = sb.LinfBall(torch.rand(4, 3, generator=draw), "1/5"), torch.tensor([0, 1, 0, 1])
    margins = sb.worst_margins(net, region, labels, method=method)
    assert bool(margins.isfinite().all())
    for _ in range(200):
        step = (torch.rand(4, 3, generator=draw) * 2 - 1).sign() * torch.rand(1, generator=draw)
        z = net(region.x + step / 5)
        assert bool((z - z.gather(1, labels.unsqueeze(1)) <= margins).all())


@pytest.mark.parametrize("name", ["the middle ones", "from the third on", "all but the first", "rotated by 3"])
def test_every_example_is_replaced_in_turn(name: str) -> None:
    """By values alone, without the signs that sizes and places give."""
    program = program_of(Applied(name), torch.rand(8, 2))
    assert _seen(program, program.parameters(), 5)
