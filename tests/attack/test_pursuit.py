"""The attacks on conjunctions and on networks that step: they find what ascent on the smallest row does not."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn

from surebound.attack.climb import climb, starts
from surebound.attack.pursuit import pursue
from surebound.attack.through import straight_through
from surebound.graph import program_of


def _shell(x: Tensor) -> Tensor:
    """The squared length, and a direction."""
    return torch.stack([x.square().sum(1), x[:, 0] - 3 * x[:, 1]], 1)


def test_a_thin_shell_is_entered_and_followed() -> None:
    low, high = torch.full((1, 4), -1.0), torch.full((1, 4), 1.0)
    # 1 <= |x|^2 <= 1.001 and x_0 - 3 x_1 >= 3.1, whose most on the unit sphere is the root of 10
    c = torch.tensor([[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    d = torch.tensor([[-1.0, 1.001, -3.1]], dtype=torch.float64)
    again = torch.zeros(16).long()
    given = (starts(low, high, 0, 16), low[again], high[again], c[again], d[again], math.inf)
    assert next(climb(_shell, *given), None) is None
    point, start = next(pursue(_shell, *given))
    rows = torch.einsum("sk,k->s", c[0], _shell(point)[0].double()) + d[0]
    assert bool((rows >= 0).all()) and 0 <= start < 16
    assert bool((point >= low).all() and (point <= high).all())


def test_it_ends_where_nothing_is_to_be_found() -> None:
    low, high = torch.zeros(8, 2), torch.ones(8, 2)
    c, d = torch.ones(8, 1, 2, dtype=torch.float64), torch.full((8, 1), -100.0, dtype=torch.float64)
    began = time.process_time()
    assert list(pursue(_shell, starts(low[:1], high[:1], 0, 8), low, high, c, d, math.inf)) == []
    assert time.process_time() - began < 20


class _Binarised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(torch.sign(self.first(x))))


def test_gradients_go_straight_through_steps_and_values_stay() -> None:
    net = _Binarised().eval()
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
    network = straight_through(program_of(net, x.detach()))
    out = network(x)
    assert torch.equal(out, net(x))
    own = torch.autograd.grad(net(x).sum(), x, materialize_grads=True)[0]
    assert not bool(own.any())
    gradient = torch.autograd.grad(out.sum(), x)[0]
    further = net(x + 0.3 * gradient.sign())
    assert bool((further > out).all())


def test_a_network_without_steps_is_taken_as_it_is() -> None:
    program = program_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval(), torch.zeros(1, 2))
    assert straight_through(program) is program
