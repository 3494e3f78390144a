"""A trace is compared with its module inside the network, where the outputs alone may hide what is wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import surebound as sb
from surebound.errors import TraceMismatchError
from surebound.graph.trace import trace


class TracedOtherwise(nn.Module):
    """Computes x - 6, and x - 5 where it is traced."""

    def forward(self, x: Tensor) -> Tensor:
        return x - (5.0 if torch.compiler.is_exporting() else 6.0)


class Twice(nn.Module):
    """Calls one part twice, writes into what another returned, and ignores a third."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.once, self.aside = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.once(self.again(self.again(x)))
        self.aside(y)
        y[:, 1:3] += 7
        return y.relu_()


def test_a_fault_behind_a_relu_that_is_off_is_found():
    hidden = nn.Sequential(nn.Flatten(), nn.Sequential(TracedOtherwise(), nn.ReLU()), nn.Linear(4, 2))
    x = torch.zeros(1, 4)  # inputs in [0, 1]: both are below 0 there, and the outputs are equal
    with pytest.raises(TraceMismatchError, match=r"the submodule '1.0' returns differs by 1 from what was traced"):
        trace(hidden, x)
    with pytest.raises(TraceMismatchError, match="1.0"):
        sb.verify(hidden, sb.LinfBall(10 + x, "1/10"), torch.tensor([0]))


def test_parts_that_are_called_twice_overwritten_or_ignored_are_no_fault():
    torch.manual_seed(0)
    net = Twice()
    program, x = trace(net, torch.zeros(1, 4)), torch.rand(3, 4)
    assert torch.allclose(program(x), net(x))


def test_nothing_is_left_on_the_module_or_on_torch():
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    before = dict(torch_module._global_forward_hooks)
    trace(net, torch.zeros(1, 3))
    assert dict(torch_module._global_forward_hooks) == before
    assert not any(part._forward_hooks for part in net.modules())
