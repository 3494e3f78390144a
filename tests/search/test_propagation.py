"""Signs that follow from others: against enumeration of tiny formulas, sampled executions, and exact fractions."""

from __future__ import annotations

import itertools
import math
import time
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from surebound.bounds.reduced.network import Layer, Reduced, Rows
from surebound.bounds.reduced.passes import Multipliers, Passes
from surebound.bounds.reduced.reduction import reduce_network
from surebound.bounds.reduced.targets import Targets
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness, float_up, strictly_above
from surebound.search.branch_and_bound import Options, Tree
from surebound.search.complete import search
from surebound.search.question import Cases, Finding, Proof
from surebound.search.rule import SIGNS, Budget
from surebound.search.signs import inequalities, propagation, ranges
from surebound.search.signs.domains import Domains
from surebound.search.signs.propagation import Propagation
from surebound.search.signs.ranges import Ranges
from surebound.search.signs.splitter import SignSplitter
from surebound.search.workspace import Workspace
from tests.search.test_questions import ask, unit
from tests.verify.oracle import tiny_net

Clause = tuple[int, ...]  # literals: i or -i for the variable i >= 1


def satisfiable(variables: int, clauses: list[Clause]) -> bool:
    worlds = itertools.product((False, True), repeat=variables)
    return any(all(any(world[abs(x) - 1] == (x > 0) for x in clause) for clause in clauses) for world in worlds)


def network_of(variables: int, clauses: list[Clause]) -> nn.Sequential:
    """Y0 = 1 - the clauses that are violated, Y1 = how far x is from 0 and 1: satisfiable iff Y0 >= 1 and Y1 <= 0."""
    count = len(clauses)
    net = nn.Sequential(nn.Linear(variables, count + 2 * variables), nn.ReLU(), nn.Linear(count + 2 * variables, 2))
    net.requires_grad_(False)
    for parameter in net.parameters():
        parameter.zero_()
    for i, clause in enumerate(clauses):  # 1 - the number of literals that hold
        for literal in clause:
            net[0].weight[i, abs(literal) - 1] = -1.0 if literal > 0 else 1.0
        net[0].bias[i] = 1 - sum(literal < 0 for literal in clause)
        net[2].weight[0, i] = -1.0
    net[2].bias[0] = 1.0
    for j in range(variables):
        net[0].weight[count + j, j], net[2].weight[1, count + j] = 1.0, 1.0
        net[0].weight[count + variables + j, j], net[0].bias[count + variables + j] = 2.0, -1.0
        net[2].weight[1, count + variables + j] = -1.0
    return net


def random_clauses(variables: int, count: int, seed: int) -> list[Clause]:
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        chosen = torch.randperm(variables, generator=draw)[:3] + 1
        found.append(tuple((chosen * (2 * torch.randint(2, (3,), generator=draw) - 1)).tolist()))
    return found


def asked(net: nn.Sequential, variables: int, mode: Soundness) -> Finding:
    c = torch.tensor([[[1.0, 0.0], [0.0, -1.0]]])
    d = strictly_above(torch.tensor([[-1.0, 0.0]], dtype=torch.float64))

    def confirm(point: Tensor, number: int) -> Tensor | None:
        z = net(point.float())[0]
        return point[0] if bool((z[0] >= 1) & (z[1] <= 0)) else None

    with Workspace(net) as workspace:
        return search(ask(Cases.over(unit(variables), c, d), confirm, mode), workspace, Options(seconds=600), (SIGNS,))


@pytest.mark.parametrize("mode", [Soundness.REAL, Soundness.DEPLOYED])
def test_formulas_against_enumeration(mode: Soundness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random 3-CNF of 6 variables around the number of clauses where half of them can be satisfied."""
    cuts, real = list[int](), SignSplitter._cut
    monkeypatch.setattr(SignSplitter, "_cut", lambda s, b, *rest: cuts.append(len(b)) or real(s, b, *rest))
    answers = []
    for seed in range(6):
        clauses = random_clauses(6, 30, seed)
        found = asked(network_of(6, clauses), 6, mode)
        answers.append(satisfiable(6, clauses))
        if answers[-1]:
            assert found.witness is not None
        else:
            assert found.margins is not None and float(found.margins) == 0.0  # part of it is only known to be <= 0
            assert found.proof is Proof.of(mode)
    assert len(set(answers)) == 2
    assert sum(cuts) <= 60


def tree(depth: int, used: Clause = ()) -> list[Clause]:
    """A clause for every leaf of a complete tree: together they cannot hold, and no cut but the tree's own helps."""
    if len(used) == depth:
        return [used]
    variable = 1 + sum(2**i for i in range(len(used))) + sum(2**i for i, x in enumerate(used) if x < 0)
    return tree(depth, (*used, variable)) + tree(depth, (*used, -variable))


def test_cuts_are_made_where_most_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts, real = list[int](), SignSplitter._cut
    monkeypatch.setattr(SignSplitter, "_cut", lambda s, b, *rest: cuts.append(len(b)) or real(s, b, *rest))
    clauses = tree(5)
    found = asked(network_of(31, clauses), 31, Soundness.REAL)
    assert found.margins is not None and float(found.margins) <= 0
    assert sum(cuts) <= 15  # one for each inner node but the last: there both halves follow


def domains(targets: Targets, signs: Tensor, alphas: Tensor) -> Domains:
    case = torch.zeros(len(signs), dtype=torch.int64)
    return Domains.unknown(case, targets.start(case), Multipliers(signs, alphas, torch.zeros_like(alphas)))


def contains(box: Interval, value: Tensor) -> bool:
    """Value (n, M) inside of one row of bounds (1, M), but for what float64 loses in computing the value."""
    slack = 1e-9 * (1 + value.abs())
    return bool((value >= box.lower - slack).all() and (value <= box.upper + slack).all())


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_executions_that_satisfy_rows_and_signs_stay_inside(seed: int, count: int) -> None:
    """Of ``count`` rows; where it is one, the other belongs to other cases only and says nothing of this one."""
    net, generator = tiny_net([3, 8, 6, 2], seed, scale=2.0), torch.Generator().manual_seed(seed)
    x = torch.rand(20_000, 3, generator=generator)
    c = torch.tensor([[1.0, -0.3], [-0.2, 1.0]])
    z = (net(x) @ c.t())[:, :count]
    # Rows that few of the points satisfy.
    d = -torch.quantile(z.amin(1), 0.98).double().expand(2)
    reduced = reduce_network(program_of(net, x[:1]), unit(3), c, Soundness.REAL, d=d)
    targets = Targets(Passes(reduced, torch.float64), torch.tensor([[True, count == 2]]))
    v, inside = targets.passes.values(x.double())
    good = ((v @ targets.passes.outputs.up.t() + targets.passes.outputs.up_offset) > 0)[:, :count].all(1)
    assert 10 < int(good.sum()) < len(x)
    alphas = torch.cat([layer.slope for layer in reduced.layers]).double().unsqueeze(0)
    propagation, narrower = Propagation(targets), 0
    for point in good.nonzero()[:20, 0].tolist():
        signs = torch.where(inside[point] > 0, 1, -1).to(torch.int8)
        signs = torch.where(torch.rand(len(signs), generator=generator) < 0.3, signs, 0).unsqueeze(0)
        found = propagation.narrowed(domains(targets, signs, alphas))
        same = good & ((signs == 0) | (signs == torch.where(inside > 0, 1, -1))).all(1)
        assert not bool(found.refuted)
        assert contains(found.v, v[same]) and contains(found.z, inside[same])
        narrower += int((found.signs[0] != 0).sum() > (signs != 0).sum())
    assert narrower  # some signs do follow


@pytest.mark.parametrize(
    ("left", "right"), [(0.0, 1.0), (0.1, 0.5), (-1.0, 1.0), (-2.0, 0.0), (-3.0, -0.5), (0.0, 0.25)]
)
def test_what_an_activation_s_output_says_of_its_input(left: float, right: float) -> None:
    """Of y = max(left z, right z), evaluated as stated, no z with a y between the ends is excluded."""
    draw = torch.Generator().manual_seed(3)
    none = torch.zeros(1, dtype=torch.float64)
    rows = inequalities.Coefficients.of(none.reshape(1, 1))
    layer = inequalities.LayerInequalities(
        slice(0, 1), slice(0, 1), rows, rows, none, none, none, left, right, none - 1e-3
    )
    narrowed = 0
    for _ in range(300):
        low, high = torch.randn(2, 1, 1, dtype=torch.float64, generator=draw).sort(dim=0).values
        found = layer._preimages(Interval(low, high))
        z = torch.linspace(-8, 8, 4001, dtype=torch.float64)
        y = torch.maximum(left * z, right * z)
        possible = z[(y >= low[0] - 1e-3) & (y <= high[0] + 1e-3)]
        assert bool(((possible >= found.lower[0]) & (possible <= found.upper[0])).all())
        narrowed += bool(found.lower.isfinite().any() or found.upper.isfinite().any())
    assert narrowed


def corner_case(seed: int, through: bool) -> tuple[Targets, Tensor]:
    """A row that the upper corner (n,) of a box alone satisfies, by less than an ulp; or ``through`` a ReLU's input."""
    draw, n = torch.Generator().manual_seed(seed), 24
    a, upper = (torch.rand(n, generator=draw, dtype=torch.float64) + 0.1 for _ in range(2))
    exact = sum(Fraction(p) * Fraction(q) for p, q in zip(a.tolist(), upper.tolist(), strict=True))
    offset = torch.tensor([float_up(-exact)], dtype=torch.float64)  # a.upper + offset in [0, ulp)
    assert exact + Fraction(float(offset)) >= 0
    lower = upper - 1
    one = torch.ones(1, dtype=torch.float64)
    unit_row = Rows(a.unsqueeze(0), a.unsqueeze(0), offset, offset)
    ends = (-40 * one, 40 * one)
    layer = Layer("relu", torch.zeros(1).long(), unit_row, *ends, 0.5 * one, 20 * one, 0 * one, one, (0.0, 1.0))
    up = torch.cat([a if not through else torch.zeros(n).double(), one * through]).unsqueeze(0)
    row_offset = torch.zeros(1).double() if through else offset
    outputs = Rows(up, up, row_offset, row_offset)
    targets = Targets(Passes(Reduced(lower, upper, (layer,), outputs), torch.float64), torch.ones(1, 1).bool())
    return targets, upper


def lost(seed: int, through: bool) -> bool:
    """Does propagation refute the one point that is left, or narrow it away?"""
    targets, corner = corner_case(seed, through)
    signs = torch.full((1, 1), 1 if through else 0, dtype=torch.int8)
    found = Propagation(targets).narrowed(domains(targets, signs, torch.ones(1, 1, dtype=torch.float64)))
    x = found.columns(slice(0, len(corner)))
    assert bool(found.refuted) or float((corner - x.lower[0]).max()) < 1e-3
    return bool(found.refuted) or bool((x.lower > corner).any() or (x.upper < corner).any())


@pytest.mark.parametrize("through", [False, True])
def test_a_point_that_satisfies_a_row_by_less_than_an_ulp_is_kept(
    through: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is lost by a propagation that does not pay for its rounding: the mutant."""
    assert not any(lost(seed, through) for seed in range(40))
    monkeypatch.setattr(inequalities, "several_sums", lambda *_: 0.0)
    monkeypatch.setattr(Passes, "sound_offset", lambda _, found: found.offset)
    for module in (inequalities, ranges):
        monkeypatch.setattr(module, "FEW_ROUNDINGS", 0.0)
    assert any(lost(seed, through) for seed in range(40))


def test_ordinary_questions_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of many inputs says little about any of them: nothing is propagated after the first look."""
    calls, real = list[int](), Propagation.narrowed

    def counted(self: Propagation, batch: Domains, start: Ranges | None = None, rounds: int = 20) -> Ranges:
        calls.append(len(batch))
        return real(self, batch, start, rounds)

    monkeypatch.setattr(propagation.Propagation, "narrowed", counted)
    net = tiny_net([12, 16, 16, 3], 0, scale=1.5)
    rows = torch.tensor([[[1.0, -1.0, 0.0]], [[0.0, -1.0, 1.0]]])
    with Workspace(net) as workspace:
        question = ask(Cases.over(unit(12), rows, torch.full((2, 1), -0.5)))
        search(question, workspace, Options(seconds=600, domains=16), (SIGNS,))
    assert calls == [2]


def test_numbers_that_are_not_finite_are_left_alone() -> None:
    targets, _ = corner_case(0, False)
    targets.passes.outputs.up_offset.fill_(math.inf)
    found = Propagation(targets)
    found.prepare(domains(targets, torch.zeros(1, 1, dtype=torch.int8), torch.ones(1, 1, dtype=torch.float64)))
    assert not bool(found.grips.any())


def test_a_case_that_is_refuted_at_once_makes_no_batches_small() -> None:
    """One class out of reach made the batches of every other case an eighth as large."""
    net = tiny_net([2, 8, 8, 2], 5, scale=2.0)
    rows, reach = torch.tensor([[[-1.0, 1.0]], [[1.0, 0.0]]]), torch.tensor([[0.0], [-100.0]], dtype=torch.float64)
    question = ask(Cases.over(unit(2), rows, reach), None, Soundness.REAL)
    tree = Tree.of(2, time.monotonic() + 600, Budget(100))
    with Workspace(net) as workspace, torch.no_grad():
        box = question.cases.interval(0)
        rest = 0, question, workspace, Options(), tree
        splitter = SignSplitter.over(workspace.program(box.lower), box, Soundness.REAL, *rest)
        splitter.roots()
    assert splitter.propagation.grips.tolist() == [False, True]
    assert splitter.at_once == Options().batch
