"""Branch and bound by ranges: no part is lost, bounds against grids, questions that bounds of the whole leave open."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear.alpha import Adam
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.search import rule
from surebound.search.branch_and_bound import Options, Tree, explore
from surebound.search.complete import search
from surebound.search.question import Cases, Question
from surebound.search.ranges.blame import executed
from surebound.search.ranges.points import cut_points, turns
from surebound.search.ranges.pool import RangePool
from surebound.search.ranges.splitter import RangeSplitter
from surebound.search.rule import RANGES, SIGNS, Budget
from surebound.search.workspace import Workspace
from surebound.verdict import Status
from tests.bounds.test_ranges import NETS, network


def asked(net: nn.Module, level: float, eps: float = 0.5, rows: int = 1) -> Question:
    """Is c.z > level somewhere within eps of a point of three inputs?"""
    x = torch.tensor([[0.3, -0.2, 0.1]])
    c = torch.tensor([[[1.0, -1.0], [-0.5, 1.0]]])[:, :rows]
    cases = Cases.over(Interval(x - eps, x + eps), c, torch.full((1, rows), -level))
    unknown = torch.full((1,), torch.inf, dtype=torch.float64)
    return Question(cases, torch.arange(1), unknown, lambda point, number: None)


def searched(net: nn.Module, question: Question, seen: int = 400) -> tuple[RangeSplitter, Tree, RangePool]:
    """Search so far; the splitter, what is settled, and what is open."""
    options = Options(batch=32, candidates=4, root=Adam(steps=10, alpha_rate=0.1))
    tree = Tree.of(len(question.cases), math.inf, Budget(10_000, seen))
    with Workspace(net) as workspace:
        program = workspace.program(question.cases.lower[:1])
    splitter = RangeSplitter(program, question.cases.interval(0), 0, question, options, tree)
    with torch.no_grad():
        pool = explore(splitter, splitter.roots(), tree)
    tree.settle(pool)
    return splitter, tree, pool


def points_of(question: Question, count: int = 21) -> Tensor:
    """A grid of the box, its corners in it."""
    shares = torch.linspace(0, 1, count)
    low, high = question.cases.lower[0], question.cases.upper[0]
    return low + (high - low) * torch.cartesian_prod(shares, shares, shares)


@pytest.mark.parametrize("name", NETS)
def test_bounds_hold_of_a_grid_and_are_tighter_than_the_whole(name: str) -> None:
    net = network(name)
    plain = asked(net, 0.0)
    points = points_of(plain)
    top = float((net(points) @ torch.tensor([1.0, -1.0])).max())
    crown = float(
        sb.worst_margins(net, sb.Box(plain.cases.lower, plain.cases.upper), spec=sb.LinearSpec(plain.cases.c[0]))
    )
    level = top + 0.3 * (crown - top)  # true, and CROWN does not show it
    _, tree, _ = searched(net, asked(net, level), 150)
    assert float(tree.settled) >= top - level - 1e-5
    assert float(tree.settled) < 0.7 * (crown - level) or crown - top < 0.05, "cuts gain nothing"


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", ["Sigmoid", "GELU", "ReLU", "Sin", "attention", "gated"])
def test_no_part_is_lost(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every execution lies in a half of what it lay in, or in what was settled with at least its value."""
    net, points = network(name), points_of(asked(network(name), 0.0), 9)
    c = asked(net, 0.0, rows=rows).cases.c[0]
    level = float(torch.einsum("sk,pk->ps", c, net(points)).amin(1).max()) - 0.01  # some execution is above it
    question = asked(net, level, rows=rows)
    rounds = list[tuple[RangePool, RangePool | None, Tensor]]()
    real = RangeSplitter.advance

    def noted(self: RangeSplitter, batch: RangePool, tree: Tree) -> RangePool | None:
        tree.settled = torch.full_like(tree.settled, -math.inf)
        halves = real(self, batch, tree)
        rounds.append((batch, halves, tree.settled.clone()))
        return halves

    monkeypatch.setattr(RangeSplitter, "advance", noted)
    splitter, _, _ = searched(net, question, 100)
    values = executed(splitter.root.select(torch.zeros(len(points), dtype=torch.int64)), points)
    every = torch.cat([values[n].flatten(1) for n in splitter.cuttable.shapes], 1)  # (P, U)
    rows_of = torch.einsum("sk,pk->ps", question.cases.c[0].float(), net(points)) + question.cases.d[0].float()
    value = rows_of.amin(1).double()

    def inside(pool: RangePool) -> Tensor:
        """(P, N)"""
        low, high = splitter.cuttable.ends(pool, torch.arange(splitter.cuttable.count).expand(len(pool), -1))
        return ((every[:, None] >= low) & (every[:, None] <= high)).all(2)

    assert len(rounds) > 3
    cuts = 0
    for batch, halves, settled in rounds:
        within = inside(batch).any(1)
        kept = torch.zeros_like(within) if halves is None else inside(halves).any(1)
        assert bool((value[within & ~kept] <= float(settled) + 1e-6).all())
        cuts += 0 if halves is None else len(halves)
        if halves is not None:
            assert bool((halves.upper < math.inf).all())
    assert cuts > 20


def test_what_is_proved_is_refuted_by_no_execution() -> None:
    """Settled as proved: no point of the grid has a positive row; slightly lower levels are never proved."""
    for name in ("Sigmoid", "Tanh", "SiLU", "Softplus"):
        net = network(name)
        top = float((net(points_of(asked(net, 0.0), 31)) @ torch.tensor([1.0, -1.0])).max())
        _, tree, _ = searched(net, asked(net, top + 0.15, 0.3), 1000)
        assert float(tree.settled) <= 0, name
        _, tree, _ = searched(net, asked(net, top - 0.01), 100)
        assert float(tree.settled) > 0, name


def test_empty_parts_are_settled() -> None:
    """A part beyond what any execution reaches is refuted by its multiplier or its bounds, whatever the row."""
    net, question = network("Sigmoid"), asked(network("Sigmoid"), -50.0)
    splitter, tree, _ = searched(net, question, 1)
    whole = splitter.roots()
    entry = torch.zeros(1, dtype=torch.int64)
    low, high = splitter.cuttable.ends(whole, entry.unsqueeze(1))
    beta = torch.zeros(1, 1)
    beyond = whole.cut(entry, high[:, 0] + 1, high[:, 0] + 1, high[:, 0] + 2, (beta, beta))[torch.tensor([1])]
    tree = Tree.of(1, math.inf, Budget(10))
    splitter._tree = tree
    with torch.no_grad():
        assert splitter.advance(dataclasses.replace(beyond, upper=torch.ones(1).double()), tree) is None
    assert float(tree.settled) == -math.inf
    assert bool((low < high).all())


def test_two_cuts_of_one_entry_keep_one_place() -> None:
    pool = RangePool.whole(2, 1, torch.float32)
    entry, zero = torch.tensor([3, 5]), torch.zeros(1, 2)
    first = pool.cut(entry, torch.zeros(2), -torch.ones(2), torch.ones(2), (zero, zero))
    assert first.entry.tolist() == [[3], [5], [3], [5]]
    assert first.low.flatten().tolist() == [-1, -1, 0, 0]
    assert first.high.flatten().tolist() == [0, 0, 1, 1]
    second = first[torch.tensor([2, 3])].cut(
        torch.tensor([3, 4]), torch.full((2,), 0.5), torch.zeros(2), torch.ones(2), (zero + 1, zero - 1)
    )
    assert second.entry.tolist() == [[3, -1], [5, 4], [3, -1], [5, 4]]
    assert second.low.tolist() == [[0, 0], [0, 0], [0.5, 0], [0, 0.5]]
    assert second.high.tolist() == [[0.5, 0], [1, 0.5], [1, 0], [1, 1]]
    assert second.beta[0].tolist() == [[1, 0], [0, 1], [-1, 0], [0, -1]]


def test_ranges_are_cut_where_functions_turn() -> None:
    low, high, value = torch.tensor([[-1.0]]), torch.tensor([[1.5]]), torch.tensor([[9.0]])
    none = torch.full((1, 1, 2), torch.nan, dtype=torch.float64)
    assert float(cut_points(low, high, value, none)) == 0.75  # between the middle and the nearest value
    assert float(cut_points(low, high, value - 99, none)) == -0.25
    assert float(cut_points(low, high, value, torch.tensor([[[0.0, 0.5]]], dtype=torch.float64))) == 0.0
    assert float(cut_points(low, high, value, torch.tensor([[[1.4, -0.9]]], dtype=torch.float64))) == 0.75
    for name, expected in (("Sigmoid", (0.0,)), ("ReLU", (0.0,)), ("GELU", ()), ("Hardtanh", (-1.0, 1.0))):
        question = asked(network(name), 0.0)
        splitter, _, _ = searched(network(name), question, 1)
        node = splitter._program.graph.by_name[splitter.readers[0]]
        assert turns(splitter.root, node) == expected, name


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(80, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(torch.sigmoid(self.a(x)))))  # type: ignore[no-any-return]


def planned(net: nn.Module, inputs: int) -> list[str]:
    x = torch.zeros(1, inputs)
    cases = Cases.over(Interval(x - 1, x + 1), torch.ones(1, 1, 2), torch.zeros(1, 1))
    question = Question(cases, torch.arange(1), torch.zeros(1).double(), lambda point, number: None)
    with Workspace(net.requires_grad_(False)) as workspace:
        return [way for way, _ in rule.ways(workspace.program(x), question, 100)]


def test_ranges_are_tried_where_signs_do_not_decide() -> None:
    relus = nn.Sequential(nn.Linear(80, 4), nn.ReLU(), nn.Linear(4, 2))
    assert planned(relus, 80) == [SIGNS]
    assert planned(nn.Sequential(nn.Linear(80, 4), nn.Tanh(), nn.Linear(4, 2)), 80) == [RANGES]
    assert planned(Mixed(), 80) == [SIGNS, RANGES, SIGNS]
    assert planned(nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 2)), 20)[1] == RANGES
    assert RANGES not in planned(nn.Sequential(nn.Linear(20, 4), nn.ReLU(), nn.Linear(4, 2)), 20)


@pytest.mark.parametrize("act", [nn.Sigmoid, nn.Tanh, nn.GELU])
def test_images_that_bounds_leave_open_are_decided(act: type[nn.Module]) -> None:
    """With many inputs: CROWN and optimised slopes leave the label open, parts of ranges prove it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(80, 12), act(), nn.Linear(12, 12), act(), nn.Linear(12, 2)).requires_grad_(False)
    for p in net.parameters():
        p.mul_(2 if p.dim() > 1 else 1)
    x = torch.rand(1, 80)
    region, label = sb.LinfBall(x, "1/10"), net(x).argmax(1)
    other = 1 - int(label)
    bound = float(sb.worst_margins(net, region, label, method="alpha-crown")[0, other])
    z = net(x + (torch.rand(20000, 80) - 0.5).sign() * 0.1)
    gap = bound - float((z[:, other] - z[:, int(label)]).max())
    net[-1].bias.data[other] -= bound - 0.05 * gap
    assert float(sb.worst_margins(net, region, label, method="alpha-crown")[0, other]) > 0
    found = sb.decide(net, region, label, stages=("range-splitting",), timeout=120)[0]
    assert found.status is Status.ROBUST
    assert found.float_sound
    found = sb.decide(net, region, label, stages=("branch-and-bound",), timeout=120)[0]
    assert found.status is Status.ROBUST


def test_witnesses_are_found_among_parts() -> None:
    net = network("Tanh")
    x = torch.tensor([[0.3, -0.2, 0.1]])
    z = net(points_of(asked(net, 0.0), 31))
    level = float((z[:, 0] - z[:, 1]).max()) - 0.01
    spec = sb.LinearSpec(torch.tensor([[1.0, -1.0]]), torch.tensor([-level]))
    found = sb.decide(net, sb.LinfBall(x, "1/2"), spec, stages=("range-splitting",), timeout=120)[0]
    assert found.status is Status.FALSIFIED


def test_proofs_by_parts_have_no_evidence() -> None:
    """A certificate says so, as of a proof by a solver alone."""
    net = network("Sigmoid")
    top = float((net(points_of(asked(net, 0.0), 31)) @ torch.tensor([1.0, -1.0])).max())
    question = dataclasses.replace(asked(net, top + 0.3, 0.3), certify=True)
    with Workspace(net) as workspace:
        found = search(question, workspace, Options(seconds=600), (RANGES,))
    assert found.margins is not None
    assert float(found.margins) <= 0
    assert found.rests_on(0, "branch-and-bound").why == "proved by branch-and-bound alone"


def test_a_network_with_nothing_to_cut_stays_open() -> None:
    """What reads the input alone is not cut: the box is no range inside the network."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Tanh(), nn.Linear(3, 2)).requires_grad_(False)
    top = float((net(points_of(asked(net, 0.0))) @ torch.tensor([1.0, -1.0])).max())
    splitter, tree, pool = searched(net, asked(net, top - 0.01))
    assert splitter.cuttable.count == 0
    assert len(pool) == 0
    assert 0 < float(tree.settled) < math.inf


def test_modes_are_kept() -> None:
    question = dataclasses.replace(asked(network("Sigmoid"), 0.0), mode=Soundness.REAL)
    splitter, _, _ = searched(network("Sigmoid"), question, 50)
    assert splitter.root.mode is Soundness.REAL
