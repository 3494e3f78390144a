"""Questions of every kind by one search: several rows against every activation pattern; what is open stays open."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from surebound.interval import Interval
from surebound.numerics import Soundness, strictly_above
from surebound.search import complete
from surebound.search.branch_and_bound import Options, Tree
from surebound.search.complete import search
from surebound.search.question import Cases, Finding, Proof, Question
from surebound.search.rule import INPUTS, SIGNS, Budget
from surebound.search.signs.domains import Domains
from surebound.search.signs.leaves import settle
from surebound.search.signs.splitter import SignSplitter
from surebound.search.workspace import Workspace
from surebound.solvers import MathProgram, SolverOutcome, SolverStatus
from tests.verify.nets import needle
from tests.verify.oracle import tiny_net

#: Limits by numbers, not by the clock: tests may share a slow machine.
OPTIONS = Options(seconds=600)


def ask(cases: Cases, confirm: object = None, mode: Soundness = Soundness.DEPLOYED) -> Question:
    unknown = torch.full((len(cases),), math.inf, dtype=torch.float64)
    never = confirm or (lambda point, number: None)
    return Question(cases, torch.arange(len(cases)), unknown, never, mode)  # type: ignore[arg-type]


def unit(n: int) -> Interval:
    return Interval(torch.zeros(1, n), torch.ones(1, n))


def largest_smallest(net: nn.Sequential, c: np.ndarray, d: np.ndarray) -> float:
    """max over [0, 1]^n of the smallest row c.z + d, by a linear program for every activation pattern."""
    layers = [m for m in net if isinstance(m, nn.Linear)]
    n, best = layers[0].in_features, -math.inf
    for bits in itertools.product((0.0, 1.0), repeat=sum(m.out_features for m in layers[:-1])):
        matrix, constant, rows, sides, used = np.eye(n), np.zeros(n), [], [], 0
        for layer in layers:
            w, b = layer.weight.double().numpy(), layer.bias.double().numpy()
            matrix, constant = w @ matrix, w @ constant + b
            if layer is not layers[-1]:
                on = np.array(bits[used : used + len(b)])
                used += len(b)
                rows.append((1 - 2 * on)[:, None] * matrix)
                sides.append((2 * on - 1) * constant)
                matrix, constant = on[:, None] * matrix, on * constant
        below = np.concatenate([*rows, -c @ matrix])  # t - row <= 0
        last = np.concatenate([np.zeros(len(below) - len(d)), np.ones(len(d))])
        found = linprog(
            np.append(np.zeros(n), -1.0), np.hstack([below, last[:, None]]),
            np.concatenate([*sides, c @ constant + d]), bounds=[(0, 1)] * n + [(None, None)],
        )  # fmt: skip
        if found.status == 0:
            best = max(best, -found.fun)
    return best


def case_of(c: np.ndarray, d: np.ndarray, shift: float) -> Cases:
    return Cases.over(unit(3), torch.from_numpy(c)[None], torch.from_numpy(d + shift)[None])


@pytest.mark.parametrize("way", [SIGNS, INPUTS])
@pytest.mark.parametrize("seed", range(4))
def test_several_rows_against_every_activation_pattern(seed: int, way: str) -> None:
    """The rows are moved so that the largest smallest one is a hair below 0, then a hair above."""
    rng = np.random.default_rng(seed)
    net = tiny_net([3, 4, 3, 3], seed, scale=2.0)
    c, d = rng.normal(size=(3, 3)).astype(np.float32).astype(np.float64), rng.normal(size=3)
    truth, hair = largest_smallest(net, c, d), 2e-3
    with Workspace(net) as workspace:
        below = search(ask(case_of(c, d, -truth - hair)), workspace, OPTIONS, (way,))
        assert below.margins is not None and below.proof is Proof.DEPLOYED
        assert -hair - 1e-4 <= float(below.margins) <= 0
        seen: list[Tensor] = []

        def confirm(point: Tensor, number: int) -> Tensor | None:
            rows = net(point.float())[0].double().numpy() @ c.T + d - truth + hair
            if (rows > 0).all() and bool(((point >= 0) & (point <= 1)).all()):
                seen.append(point)
                return point[0]
            return None

        above = search(ask(case_of(c, d, -truth + hair), confirm), workspace, OPTIONS, (way,))
        assert above.witness is not None and seen


def test_a_mixture_proves_what_no_row_proves_alone() -> None:
    """x - y > 0.1 and y - x > 0.1 exclude each other; each of them can hold."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).requires_grad_(False)
    for layer in (net[0], net[2]):
        layer.weight.copy_(torch.eye(2)), layer.bias.zero_()
    c, d = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]]), torch.full((1, 2), -0.1, dtype=torch.float64)
    with Workspace(net) as workspace:
        for way in (SIGNS, INPUTS):
            found = search(ask(Cases.over(unit(2), c, d)), workspace, OPTIONS, (way,))
            assert found.margins is not None and float(found.margins) <= 0


def test_cases_of_different_boxes_and_widths() -> None:
    """Case 0 holds nowhere in its half, case 1 holds somewhere in the other: one is proved, one stays open."""
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)).requires_grad_(False)
    for layer in (net[0], net[2]):
        layer.weight.fill_(1.0), layer.bias.zero_()
    cases = Cases(
        torch.ones(2, 2, 1, dtype=torch.float64),
        torch.tensor([[-0.6, math.inf], [-0.6, -0.9999]], dtype=torch.float64),
        torch.tensor([[0.0], [0.5]]),
        torch.tensor([[0.5], [1.0]]),
        torch.tensor([0, 1]),
    )
    with Workspace(net) as workspace:
        for way in (SIGNS, INPUTS):
            found = search(ask(cases), workspace, Options(seconds=600, domains=8), (way,))
            assert found.margins is not None
            assert float(found.margins[0]) <= 0 < float(found.margins[1])


def test_boxes_too_small_to_cut_stay_open() -> None:
    """A needle narrower than the smallest box, violated by almost a half: whoever loses that box says robust."""
    net = needle(1, at=0.1, width=2.0**-23)
    assert bool((net(torch.tensor([[0.1]])).diff() > 0.4).all())
    rows = torch.tensor([[[-1.0, 1.0]]])
    with Workspace(net) as workspace:
        found = search(ask(Cases.over(unit(1), rows, torch.zeros(1, 1))), workspace, OPTIONS, (INPUTS,))
    assert found.margins is not None and not found.timed_out and not found.given_up
    assert float(found.margins) > 0


def test_an_open_box_is_not_overwritten_by_a_proved_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        0: Finding(torch.tensor([0.5]).double(), Proof.DEPLOYED),
        1: Finding(torch.tensor([-1.0]).double()),
    }
    monkeypatch.setattr(complete, "decide_by_signs", lambda number, *_: answers[number])
    cases = Cases(
        torch.ones(2, 1, 2),
        torch.zeros(2, 1).double(),
        torch.zeros(2, 2),
        torch.ones(2, 2),
        torch.tensor([0, 1]),
    )
    with Workspace(tiny_net([2, 4, 2], 0)) as workspace:
        found = search(ask(cases), workspace, OPTIONS, (SIGNS,))
    assert found.margins is not None
    assert found.margins.tolist() == [0.5, -1.0]
    assert found.proof is Proof.TOLERANCE  # the weaker of the two


@pytest.mark.parametrize("status", [SolverStatus.INFEASIBLE, SolverStatus.OPTIMAL, SolverStatus.UNKNOWN])
def test_a_leaf_rests_on_its_multipliers_not_on_a_solvers_word(status: SolverStatus) -> None:
    """A solver that calls every leaf infeasible, or optimal below 0, proves nothing."""
    net = tiny_net([2, 4, 2], 1, scale=2.0)
    question = ask(Cases.over(unit(2), torch.tensor([[[-1.0, 1.0]]]), torch.full((1, 1), 50.0)))
    with Workspace(net) as workspace:
        tree = Tree.of(1, math.inf, Budget(10))
        splitter = SignSplitter.over(
            workspace.program(torch.zeros(1, 2)),
            unit(2),
            Soundness.DEPLOYED,
            0,
            question,
            workspace,
            OPTIONS,
            tree,
        )
        root = splitter.roots()
        m = root.m.unsplit()
        leaf = Domains.unknown(root.case, root.weights, type(m)(torch.ones_like(m.signs), m.alphas, m.betas))

        def lies(problem: MathProgram) -> SolverOutcome:
            duals = np.zeros(len(problem.row_lower)) if status is SolverStatus.OPTIMAL else None
            return SolverOutcome(status, -99.0, -99.0, None, duals)

        assert settle(splitter.exact, leaf, lies).upper > 40


def test_rows_that_may_be_zero_are_moved_up() -> None:
    values = torch.tensor([0.0, -1.0, 1e300, -5e-324], dtype=torch.float64)
    moved = strictly_above(values)
    assert bool((moved > values).all())
    assert bool((moved[:1] >= torch.finfo(torch.float32).tiny).all())
    cases = Cases.over(unit(1), torch.ones(2, 1, 1), torch.zeros(2, 1), torch.tensor([[True], [False]]))
    assert cases.d[0] == 0 < cases.d[1]


def test_no_network_is_reduced_after_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many boxes, those whose turn never came stay open."""
    clock, reduced = [0.0], list[int]()

    def slow(number: int, *_: object) -> Finding:
        reduced.append(number)
        clock[0] += 100.0
        return Finding(torch.tensor([-1.0]).double(), Proof.DEPLOYED)

    monkeypatch.setattr(complete, "decide_by_signs", slow)
    monkeypatch.setattr(complete, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    c, ends = torch.ones(3, 1, 2), (torch.zeros(3, 2), torch.ones(3, 2))
    cases = Cases(c, torch.zeros(3, 1).double(), *ends, torch.arange(3))
    with Workspace(tiny_net([2, 4, 2], 0)) as workspace:
        found = search(ask(cases), workspace, Options(seconds=50), (SIGNS,))
    assert reduced == [0] and found.timed_out
    assert found.margins is not None and found.margins.tolist() == [-1.0, math.inf, math.inf]
