"""Few inputs: `verify` splits the box, by the same rule and engine as queries."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from surebound.errors import InputError
from surebound.region import LinfBall
from surebound.search import branch_and_bound, rule
from surebound.search.branch_and_bound import Options
from surebound.search.question import Finding
from surebound.search.stages import BranchAndBound, Stage
from surebound.verdict import Status, Verdict
from surebound.verify import Cascade, verify
from tests.verify.oracle import tiny_net

#: Limits by numbers, not by the clock: tests may share a slow machine.
OPTIONS = Options(seconds=600, domains=16)


def verdict(net: nn.Module, x: Tensor, label: int, eps: str, *stages: Stage) -> Verdict:
    (record,) = verify(net, LinfBall(x, eps, clip=(0, 1)), torch.tensor([label]), Cascade("test", stages))
    return record.verdict


@pytest.mark.parametrize(("inputs", "eps"), [(2, "1/2"), (5, "1/6")])
def test_boxes_decide_what_a_few_signs_do_not(inputs: int, eps: str) -> None:
    """The label's bias lies a little above, then below what samples need: robust, then not."""
    net, x, width = (
        tiny_net([inputs, 80, 80, 3], 1, scale=2.5),
        torch.full((1, inputs), 0.5),
        float(Fraction(eps)),
    )
    z = net(x - width + 2 * width * torch.rand(20_000, inputs, generator=torch.Generator().manual_seed(0)))
    worst = (z[:, 1:] - z[:, :1]).amax(1)
    net[-1].bias.data[0] += float(worst.max() + 0.1 * (worst.max() - worst.min()))
    by_signs = verdict(net, x, 0, eps, BranchAndBound(OPTIONS, splits=("relu-splitting",)))
    assert by_signs.status is Status.UNKNOWN
    found = verdict(net, x, 0, eps, BranchAndBound(OPTIONS))
    assert (found.status, found.float_sound, found.bound <= 0) == (Status.ROBUST, True, True)
    net[-1].bias.data[0] -= float(0.2 * (worst.max() - worst.min()))
    found = verdict(net, x, 0, eps, BranchAndBound(OPTIONS, splits=("input-splitting",)))
    assert found.status is Status.FALSIFIED
    assert found.witness is not None
    assert int(net(found.witness[None]).argmax()) != 0


def test_boxes_decide_smooth_networks() -> None:
    """No ReLU to split at all."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).requires_grad_(False)
    x = torch.full((1, 2), 0.5)
    corners = torch.cartesian_prod(torch.linspace(0.2, 0.8, 80), torch.linspace(0.2, 0.8, 80))
    z = net(corners)
    net[-1].bias.data[0] += float((z[:, 1] - z[:, 0]).max()) + 0.02
    assert verdict(net, x, 0, "3/10", BranchAndBound(OPTIONS)).status is Status.ROBUST
    net[-1].bias.data[0] -= 0.04
    assert verdict(net, x, 0, "3/10", BranchAndBound(OPTIONS)).status is Status.FALSIFIED


def test_the_rule_is_the_queries_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes only for few inputs and many ReLUs; what boxes give up goes to signs."""
    seen: list[str] = []
    real = branch_and_bound._Search.by_inputs
    monkeypatch.setattr(branch_and_bound._Search, "by_inputs", lambda *given: seen.append("boxes") or real(*given))
    net, x = tiny_net([2, 4, 2, 2], 0, scale=2.5), torch.full((1, 2), 0.45)
    label, stage = int(net(x).argmax()), BranchAndBound(Options(seconds=600))
    by_signs = verdict(net, x, label, "1/3", stage)
    assert by_signs.status in (Status.ROBUST, Status.FALSIFIED)
    assert seen == []
    monkeypatch.setattr(rule, "FEW_RELUS", -1)
    assert verdict(net, x, label, "1/3", stage).status is by_signs.status
    assert seen == ["boxes"]
    monkeypatch.setattr(branch_and_bound._Search, "by_inputs", lambda *given: Finding(given_up=True))
    assert verdict(net, x, label, "1/3", stage).status is by_signs.status


def test_unknown_ways_are_refused() -> None:
    with pytest.raises(InputError, match="name one or both of input-splitting, relu-splitting"):
        BranchAndBound(splits=("inputs",))
