"""A trace is compared with its module inside the network, where the outputs alone may hide what is wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import surebound as sb
from surebound.errors import TraceMismatchError
from surebound.graph.inside import distance, tolerance
from surebound.graph.trace import trace
from surebound.numerics import TRACE_TOLERANCE


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


def test_submodules_may_return_truth_values() -> None:
    class Positive(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x > 0

    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.positive = nn.Linear(3, 4), Positive()

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return torch.where(self.positive(y), y, 0.1 * y)

    net = Choosing()
    for x in (torch.rand(2, 3), torch.rand(3, 2).t()):
        assert torch.equal(trace(net, x)(x), net(x))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 4.0], [2.0, 4.0], 1.0),
        ([0.5], [0.25], 0.25),
        ([float("nan"), float("inf")], [float("nan"), float("inf")], 0.0),
        ([True, False], [True, True], 1.0),
        ([1.0], [1.0, 1.0], float("inf")),
        ([], [], 0.0),
    ],
)
def test_how_far_results_are_apart(one: list[float], other: list[float], expected: float) -> None:
    assert distance(torch.tensor(one), torch.tensor(other)) == expected


def test_nan_is_far_from_every_number() -> None:
    assert distance(torch.tensor([1.0]), torch.tensor([float("nan")])) == float("inf")
    assert distance(torch.tensor([float("nan")]), torch.tensor([1.0])) == float("inf")
    assert tolerance(torch.tensor([3.0, float("inf"), float("nan")])) == 3 * TRACE_TOLERANCE
