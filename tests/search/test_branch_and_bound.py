"""Branch and bound: agrees with independent truths, never claims what it has not shown, ends when told to."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear.alpha import Adam
from surebound.errors import InputError
from surebound.interval import Interval
from surebound.region import LinfBall
from surebound.search import branch_and_bound, by_signs, complete
from surebound.search.branch_and_bound import Options
from surebound.search.complete import search
from surebound.search.question import Cases, Question
from surebound.search.record import Record
from surebound.search.rule import SIGNS
from surebound.search.signs import inner
from surebound.search.stages import BranchAndBound, MixedInteger, PgdAttack, Stage
from surebound.search.verdicts import Setting, decide, example_of
from surebound.search.workspace import Workspace
from surebound.solvers import Limits, MathProgram, SolverOutcome, SolverStatus
from surebound.verdict import Status
from tests.verify.nets import needle
from tests.verify.oracle import exact_maximum, tiny_net

#: No optimisation: bounds of leaves come from their linear programs alone.
PLAIN = Options(root=Adam(steps=0), node=Adam(steps=0), candidates=1, seconds=600)
GOOD = Options(seconds=600)  # tests may share a slow machine


def run(
    net: nn.Module | Workspace,
    x: Tensor,
    labels: Tensor,
    eps: str,
    *stages: Stage,
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> list[Record]:
    """Records in the order of the examples, whatever their status."""
    workspace = net if isinstance(net, Workspace) else Workspace(net)
    examples = [
        example_of(i, image, int(k), Fraction(eps), "") for i, (image, k) in enumerate(zip(x, labels, strict=True))
    ]
    try:
        records, left = decide(stages or (BranchAndBound(GOOD),), examples, Setting(clip=clip), workspace)
    finally:
        if workspace is not net:
            workspace.close()
    return sorted([*records, *(example.left_open() for example in left)], key=lambda r: r.index)


def check_witness(net: nn.Module, record: Record, x: Tensor, eps: str) -> None:
    witness = record.verdict.witness
    assert witness is not None
    assert int(net(witness.unsqueeze(0)).argmax()) != record.label
    for a, b in zip(witness.flatten().tolist(), x.flatten().tolist(), strict=True):
        assert abs(Fraction(a) - Fraction(b)) <= Fraction(eps)
        assert 0 <= a <= 1


@pytest.mark.parametrize("options", [GOOD, PLAIN], ids=["optimised", "linear programs"])
@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_every_activation_pattern(options: Options, seed: int) -> None:
    """The output's bias is set so that the worst margin is a hair below 0, then a hair above."""
    net, eps = tiny_net([2, 4, 2, 2], seed, scale=2.5), "1/3"
    x = torch.full((1, 2), 0.45)
    box = LinfBall(x, eps, (0, 1)).interval()
    worst = exact_maximum(net, box.lower[0], box.upper[0], np.array([-1.0, 1.0]))
    hair = 1e-3
    with Workspace(net) as workspace:
        net[-1].bias.data[0] += worst + hair
        (record,) = run(workspace, x, torch.tensor([0]), eps, BranchAndBound(options))
        assert record.verdict.status is Status.ROBUST
        assert record.verdict.float_sound
        assert -hair - 1e-5 <= record.verdict.bound <= 0
        net[-1].bias.data[0] -= 2 * hair
        (record,) = run(workspace, x, torch.tensor([0]), eps, BranchAndBound(options))
        assert record.verdict.status is Status.FALSIFIED
        check_witness(net, record, x, eps)


def test_many_cases_without_a_relu_to_split_stay_open() -> None:
    """Ninety-nine differences of equal outputs, by signs: there is nothing to relax, and nothing to prove."""
    net = nn.Linear(3, 100).requires_grad_(False)
    net.weight.data[:], net.bias.data[:] = net.weight.data[0].clone(), net.bias.data[0].clone()
    rows = torch.eye(100)[1:].unsqueeze(1)
    rows[:, :, 0] = -1
    cases = Cases.over(Interval(torch.zeros(1, 3), torch.ones(1, 3)), rows, torch.full((99, 1), 1e-9))
    margins = torch.full((99,), math.inf, dtype=torch.float64)
    with Workspace(net) as workspace:
        found = search(Question(cases, torch.arange(99), margins, lambda point, box: None), workspace, GOOD, (SIGNS,))
    assert found.margins is not None and bool(((found.margins > 0) & (found.margins < 1e-3)).all())


@pytest.mark.parametrize("seed", [0, 1])
def test_optimised_bounds_inside_the_network_agree_too(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """With patience 0, every search begins again over a network that is reduced with optimised bounds."""
    monkeypatch.setattr(inner, "_AFTER", 0)
    monkeypatch.setattr(inner, "_PATIENCE", 0.0)
    calls = []
    optimised = inner.optimised_bounds
    monkeypatch.setattr(inner, "optimised_bounds", lambda *args: calls.append(args) or optimised(*args))
    test_agrees_with_every_activation_pattern(GOOD, seed)
    assert calls


class Residual(nn.Module):
    """Two ReLUs read one value, and a skip connection goes around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(3 * x)
        g = torch.relu(h) + torch.relu(self.inner(torch.relu(h)))
        return self.last(torch.relu(g + h))


def nets() -> list[nn.Module]:
    torch.manual_seed(11)
    conv = nn.Sequential(
        nn.Unflatten(1, (1, 1, 3)), nn.Conv2d(1, 3, (1, 2)), nn.ReLU(), nn.Flatten(), nn.Linear(6, 5),
        nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip
    for parameter in conv.parameters():
        parameter.data *= 2
    conv[-1].bias.data -= conv(torch.rand(100, 3)).mean(0).detach()  # or one class wins everywhere
    return [tiny_net([3, 8, 6, 3], 7, scale=2.0), Residual().eval(), conv.requires_grad_(False).eval()]


def undecided(net: nn.Module, count: int) -> Tensor:
    """Points of which the network is not sure: every other one of those with the smallest margins."""
    torch.manual_seed(1)
    x = torch.rand(200, 3)
    best = net(x).topk(2, 1).values
    return x[(best[:, 0] - best[:, 1]).argsort()[4 : 4 + 6 * count : 6]]


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["dense", "residual", "convolution"])
def test_agrees_with_the_mip(kind: int) -> None:
    net = nets()[kind]
    x = undecided(net, 4)
    labels, statuses = net(x).argmax(1), set()
    with Workspace(net) as workspace:
        for eps in ("1/50", "1/10"):
            ours = run(workspace, x, labels, eps)
            theirs = run(workspace, x, labels, eps, MixedInteger())
            for mine, other in zip(ours, theirs, strict=True):
                assert mine.verdict.status is other.verdict.status, (eps, mine.index, mine.verdict)
                statuses.add(mine.verdict.status)
                if mine.verdict.status is Status.FALSIFIED:
                    check_witness(net, mine, x[mine.index], eps)
    assert statuses == {Status.ROBUST, Status.FALSIFIED}


def test_finds_what_gradients_cannot() -> None:
    net, x, label = needle(2), torch.full((1, 2), 0.5), torch.tensor([0])
    (blind,) = run(net, x, label, "2/5", PgdAttack(steps=20, restarts=2))
    assert blind.verdict.status is Status.UNKNOWN
    (record,) = run(net, x, label, "2/5")
    assert record.verdict.status is Status.FALSIFIED
    check_witness(net, record, x, "2/5")


def test_a_batch_gives_what_each_example_gives() -> None:
    net = nets()[0]
    x = undecided(net, 3)
    labels = net(x).argmax(1)
    with Workspace(net) as workspace:
        together = run(workspace, x, labels, "1/20", BranchAndBound(Options(seconds=600, batch=2)))
        again = run(workspace, x, labels, "1/20", BranchAndBound(Options(seconds=600, batch=2)))
        for i in range(3):
            (alone,) = run(workspace, x[i : i + 1], labels[i : i + 1], "1/20")
            assert alone.verdict.status is together[i].verdict.status
    for one, two in zip(together, again, strict=True):  # the same bits, not only the same answer
        assert one.verdict.bound == two.verdict.bound
        assert (one.verdict.witness is None) == (two.verdict.witness is None)
        if one.verdict.witness is not None and two.verdict.witness is not None:
            assert torch.equal(one.verdict.witness, two.verdict.witness)


def test_no_time_is_no_proof() -> None:
    net, x = nets()[0], torch.full((1, 3), 0.5)
    labels = net(x).argmax(1)
    for seconds in (0.0, 1e-9):
        (record,) = run(net, x, labels, "1/100", BranchAndBound(Options(seconds=seconds)))
        assert record.verdict.status is Status.TIMEOUT


def test_too_many_sub_problems_end_the_search() -> None:
    x, label = torch.full((1, 2), 0.5), torch.tensor([0])
    # boxes would find it
    by_signs = BranchAndBound(Options(seconds=600, domains=1), splits=("relu-splitting",))
    (record,) = run(needle(2), x, label, "2/5", by_signs)
    assert record.verdict.status is Status.UNKNOWN
    assert "more than 1 sub-problems" in record.verdict.detail


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_none_prove_nothing(bad: float) -> None:
    net, x = tiny_net([3, 4, 3], 7), torch.full((1, 3), 0.5)
    with Workspace(net) as workspace:
        workspace.program(x)  # tracing itself refuses such a network
        net[0].weight.data[0, 0] = bad
        (record,) = run(workspace, x, torch.tensor([0]), "1/8")
    assert record.verdict.status is not Status.ROBUST


def test_a_proof_covers_every_order_of_summation() -> None:
    """Two equal rows differ by nothing over the reals, but two orders of their sums do: no proof."""
    net = nn.Sequential(nn.Linear(33, 33, bias=False), nn.ReLU(), nn.Linear(33, 2, bias=False))
    net[0].weight.data.copy_(torch.eye(33))
    net[2].weight.data.fill_(1.0)
    net.requires_grad_(False).eval()
    x = torch.ones(1, 33)
    x[0, 0] = 2.0**24
    (record,) = run(net, x, torch.tensor([0]), "0", clip=None)
    assert record.verdict.status is Status.UNKNOWN
    ordered = sum(x[0].flip(0).tolist(), torch.zeros(())) - sum(x[0].tolist(), torch.zeros(()))
    assert record.verdict.bound >= float(ordered) > 0


def test_margins_within_rounding_of_zero_stay_open() -> None:
    """Two equal ReLUs cancel in the margin: it is 0 over the reals, and rounding forbids to claim that."""
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2))
    net[0].weight.data.copy_(torch.tensor([[1.0], [1.0]]))
    net[0].bias.data.fill_(-1 / 3)
    net[2].weight.data.copy_(torch.tensor([[3.0, 1.0], [1.0, 3.0]]))
    net[2].bias.data.zero_()
    (record,) = run(net.requires_grad_(False).eval(), torch.tensor([[0.5]]), torch.tensor([0]), "1/2")
    assert record.verdict.status is not Status.ROBUST


def test_where_rounding_forbids_a_proof_the_reals_may_have_one() -> None:
    """A margin of -1e-7 with weights of 1 is below 0, and no order of summation is safe."""
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2)).requires_grad_(False).eval()
    net[0].weight.data.copy_(torch.tensor([[1.0], [1.0]]))
    net[0].bias.data.fill_(-0.5)
    net[2].weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    net[2].bias.data.copy_(torch.tensor([2.0**-23, 0.0]))
    x, label = torch.tensor([[0.5]]), torch.tensor([0])
    (strict,) = run(net, x, label, "1/2", BranchAndBound(GOOD))
    assert strict.verdict.status is not Status.ROBUST
    (real,) = run(net, x, label, "1/2", BranchAndBound(Options(seconds=600, reals=True)))
    assert real.verdict.status is Status.ROBUST
    assert not real.verdict.float_sound


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match="seconds must be >= 0"):
        Options(seconds=-1)
    with pytest.raises(InputError, match="1 or more"):
        Options(candidates=0)


class _Slow(Workspace):
    """Only its solver's programs take time, all that they are given and a little more."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.now, self.asked = 0.0, 0

    def solver(self, name: str) -> _Slow:  # type: ignore[override]
        return self

    def solve(self, problem: MathProgram, limits: Limits) -> SolverOutcome:
        self.now += limits.seconds + 0.01
        self.asked += 1
        return SolverOutcome(SolverStatus.TIME_LIMIT)


def test_a_slow_solver_gets_one_program_not_one_per_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that needs many leaves' programs: after the first the time is over, and nothing else is blamed."""
    net, eps, x = tiny_net([2, 4, 4, 2], 0, scale=2.5), "1/3", torch.full((1, 2), 0.45)
    box = LinfBall(x, eps, (0, 1)).interval()
    worst = exact_maximum(net, box.lower[0], box.upper[0], np.array([-1.0, 1.0]))
    net[-1].bias.data[0] += worst + 1e-5
    with _Slow(net) as workspace:
        for module in (branch_and_bound, by_signs, complete):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: workspace.now))
        stage = BranchAndBound(dataclasses.replace(PLAIN, seconds=2.0, reals=True))
        (record,) = run(workspace, x, torch.tensor([0]), eps, stage)
    assert workspace.asked == 1
    assert record.verdict.status is Status.TIMEOUT
    assert record.verdict.detail == ""


class SoftmaxFirst(nn.Module):
    """A softmax without lines of its own before ReLUs that are all stable: no rows go back through it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2).requires_grad_(False)
        self.a.bias.fill_(9.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x.softmax(1))))


def test_no_rows_go_back_through_an_operator_without_lines() -> None:
    torch.manual_seed(0)
    net, x = SoftmaxFirst(), torch.rand(1, 3)
    label = net(x).argmax(1)
    found = sb.decide(net, sb.LinfBall(x, "1/10"), label, stages=("relu-splitting",), timeout=20)[0]
    assert found.status.value in ("robust", "unknown")
