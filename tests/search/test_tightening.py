"""Bounds by linear programs: sound against samples and every activation pattern, never looser, same MIP optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import surebound as sb
from surebound.errors import ConfigError, InputError
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import SOLVER_FEASIBILITY
from surebound.region import Box
from surebound.search.cascade import cascade
from surebound.search.labels import Labels
from surebound.search.mip import NetworkEncoder, tightest_bounds
from surebound.search.question import Questions
from surebound.search.stages import MixedInteger
from surebound.search.tightening import tightened_bounds
from surebound.search.workspace import Workspace
from surebound.solvers import Limits, MathProgram, SolverOutcome, SolverStatus
from surebound.solvers.highs import solve as highs
from tests.verify.oracle import exact_maximum, tiny_net

ROWS = torch.tensor([[-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]])
LIMITS = Limits(SOLVER_FEASIBILITY, seconds=30.0)


class Leaky(nn.Module):
    """Other slopes than 0 and 1, a skip connection, a layer whose bounds programs leave alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b, self.c = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.leaky_relu(2 * self.a(x), 0.2)
        return self.c(torch.relu(h + 2 * self.b(h)))


def unit(n: int) -> Interval:
    return Box(torch.zeros(1, n), torch.ones(1, n)).interval()


def both(net: nn.Module, box: Interval, count: int = 99) -> tuple[dict[str, Interval], dict[str, Interval]]:
    program = program_of(net, box.lower)
    known = tightest_bounds(program, box, crown=True)
    return known, tightened_bounds(program, box, known, ROWS, count, lambda p: highs(p, LIMITS), lambda: True)


def values(net: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every value of the network at points x, by name."""
    found: dict[str, torch.Tensor] = {}
    program = program_of(net, x[:1])
    env: dict[str, object] = {**program.parameters(), program.graph.input: x}
    from surebound.graph.program import resolve, resolve_kwargs

    for node in program.graph.nodes:
        env[node.name] = node.target(*resolve(node.args, env), **resolve_kwargs(node.kwargs, env))
        if isinstance(env[node.name], torch.Tensor) and node.varies:
            found[node.name] = env[node.name]  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_bounds_contain_every_value_and_are_tighter(seed: int) -> None:
    net = Leaky() if seed == 3 else tiny_net([3, 6, 6, 6, 3], seed, scale=2.0)
    box = unit(3)
    known, found = both(net, box)
    x = torch.rand(30_000, 3, generator=torch.Generator().manual_seed(seed))
    x[:8] = torch.tensor([[i >> b & 1 for b in range(3)] for i in range(8)]).float()
    computed = values(net, x)
    gained = 0.0
    for name, value in computed.items():
        assert bool((value >= found[name].lower).all() and (value <= found[name].upper).all()), name
        assert bool((found[name].lower >= known[name].lower).all())
        assert bool((found[name].upper <= known[name].upper).all())
        gained += float(((found[name].lower - known[name].lower) > 1e-3).sum())
    assert gained > 0


def test_a_bound_is_the_programs_optimum_and_no_less_than_the_truth() -> None:
    """The last hidden layer's inputs: between the best of all activation patterns and CROWN, and rounding of the LP."""
    net = tiny_net([2, 4, 4, 3], 1, scale=2.0)
    box = unit(2)
    seen: list[float] = []

    def solve(problem: MathProgram) -> SolverOutcome:
        outcome = highs(problem, LIMITS)
        seen.append(outcome.objective)
        return outcome

    program = program_of(net, box.lower)
    known = tightest_bounds(program, box, crown=True)
    found = tightened_bounds(program, box, known, ROWS, 99, solve, lambda: True)
    name = [node.name for node in program.graph.nodes if node.varies][2]  # the second linear layer
    assert seen
    head = nn.Sequential(*net[:3])  # Linear, ReLU, Linear
    tight = 0
    for i, row in enumerate(np.eye(4)):
        truth = exact_maximum(head, box.lower[0], box.upper[0], row)
        assert truth - 1e-5 <= float(found[name].upper[0, i]) <= float(known[name].upper[0, i])
        tight += any(abs(float(found[name].upper[0, i]) - each) < 1e-4 for each in seen)
    assert tight > 0


@pytest.mark.parametrize("lie", ["huge", "negative", "nan", "none"])
def test_a_lying_solver_proves_nothing(lie: str) -> None:
    net, box = tiny_net([3, 6, 6, 3], 0, scale=2.0), unit(3)
    program = program_of(net, box.lower)
    known = tightest_bounds(program, box, crown=True)

    def solve(problem: MathProgram) -> SolverOutcome:
        rows = len(problem.row_lower)
        duals = {"huge": 1e30, "negative": -5.0, "nan": np.nan}
        given = None if lie == "none" else np.full(rows, duals[lie])
        return SolverOutcome(SolverStatus.OPTIMAL, -99.0, -99.0, np.zeros(len(problem.lower)), given)

    found = tightened_bounds(program, box, known, ROWS, 99, solve, lambda: True)
    computed = values(net, torch.rand(5_000, 3, generator=torch.Generator().manual_seed(0)))
    for name, value in computed.items():
        assert bool((value >= found[name].lower).all() and (value <= found[name].upper).all()), name


def test_only_so_many_programs_and_only_while_there_is_time() -> None:
    net, box = tiny_net([3, 6, 6, 6, 3], 0, scale=2.0), unit(3)
    program = program_of(net, box.lower)
    known = tightest_bounds(program, box, crown=True)
    asked: list[MathProgram] = []

    def solve(problem: MathProgram) -> SolverOutcome:
        asked.append(problem)
        return highs(problem, LIMITS)

    tightened_bounds(program, box, known, ROWS, 2, solve, lambda: True)
    assert len(asked) == 4
    tightened_bounds(program, box, known, ROWS, 99, solve, lambda: len(asked) < 5)
    assert len(asked) == 5
    assert tightened_bounds(program, box, known, ROWS[:0], 99, solve, lambda: True) is known


@pytest.mark.parametrize("seed", [1, 3])
def test_the_optimum_stays_and_the_relaxation_gets_tighter(seed: int) -> None:
    net, box = tiny_net([2, 4, 4, 3], seed, scale=2.0), unit(2)
    known, found = both(net, box)
    encoder = NetworkEncoder(program_of(net, box.lower))
    truth = exact_maximum(net, box.lower[0], box.upper[0], ROWS[0].double().numpy())
    relaxed = []
    for bounds in (known, found):
        problem = encoder.encode(bounds).problem(ROWS[0].double().numpy(), 0.0)
        assert highs(problem, LIMITS).objective == pytest.approx(truth, abs=1e-5)
        relaxed.append(highs(problem.relaxed(), LIMITS).dual_bound)
    assert truth - 1e-6 <= relaxed[1] <= relaxed[0] + 1e-9


@pytest.mark.parametrize(("seed", "proved"), [(2, True), (5, False)])
def test_the_stage_decides_as_before(seed: int, proved: bool) -> None:
    net = tiny_net([2, 4, 4, 3], seed, scale=2.0)
    x = torch.full((1, 2), 0.5)
    label = net(x).argmax(1)
    margins = torch.full((1, 3), torch.inf, dtype=torch.float64).scatter(1, label[:, None], -torch.inf)
    with Workspace(net) as workspace:
        asked = Labels(workspace, label, label, 3)
        questions = Questions(sb.LinfBall(x, "1/2", clip=(0, 1)), asked, margins, torch.tensor([0]))
        plain, tight = (MixedInteger(tighten=n).decide(questions, workspace)[0] for n in (0, 8))
    for found in (plain, tight):
        assert found.margins is not None and (found.witness is None) == proved
        assert bool((found.margins <= 0)[torch.arange(3) != label].all()) == proved


def test_settings_are_checked_and_reach_every_stage() -> None:
    with pytest.raises(InputError, match="tighten must be 0 or more"):
        MixedInteger(tighten=-1)
    given = cascade("default").tightened(12)
    assert [stage.tighten for stage in given.stages if hasattr(stage, "tighten")] == [12, 12]
    assert given.key != cascade("default").key
    with pytest.raises(ConfigError, match="'fast' has neither a MIP nor an LP stage"):
        cascade("fast").tightened(12)
