"""Every solver gives the same answers; every way of failing has its own status and never a bound."""

from __future__ import annotations

import importlib
import itertools
import math
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from surebound.errors import ConfigError, InputError, SolverError
from surebound.numerics import SOLVER_FEASIBILITY
from surebound.solvers import Limits, MathProgram, SolverProcess, SolverStatus, available, find
from surebound.solvers.outcome import SolverOutcome, consistent, read_status
from surebound.solvers.wire import decode_outcome, decode_request, encode_outcome, encode_request


def limits(**given: float) -> Limits:
    return Limits(SOLVER_FEASIBILITY, **given)  # type: ignore[arg-type]


LIMITS = limits(seconds=20.0)


def knapsack(integral: bool = True, offset: float = 0.5) -> MathProgram:
    """Maximise 5a + 4b + 3c + offset with 2a + 3b + c <= 5, 4a + b + 2c <= 11, 3a + 4b + 2c <= 8."""
    return MathProgram(
        objective=np.array([5.0, 4.0, 3.0]),
        offset=offset,
        matrix=sp.csr_array(np.array([[2.0, 3, 1], [4, 1, 2], [3, 4, 2]])),
        row_lower=np.array([-math.inf, -math.inf, 0.0]),
        row_upper=np.array([5.0, 11.0, 8.0]),
        lower=np.zeros(3),
        upper=np.full(3, 3.0),
        integral=np.full(3, integral),
    )


def brute_force(problem: MathProgram) -> float:
    best = -math.inf
    for point in itertools.product(range(4), repeat=3):
        rows = problem.matrix @ np.array(point, dtype=float)
        if (rows <= problem.row_upper).all():
            best = max(best, float(problem.objective @ point + problem.offset))
    return best


@pytest.fixture(params=available())
def solver(request: pytest.FixtureRequest) -> object:
    return importlib.import_module(find(request.param))


def test_integers(solver: object) -> None:
    problem = knapsack()
    outcome = solver.solve(problem, LIMITS)
    assert outcome.status is SolverStatus.OPTIMAL
    assert outcome.objective == pytest.approx(brute_force(problem))
    assert outcome.bound == pytest.approx(brute_force(problem))
    assert problem.objective @ outcome.point + problem.offset == pytest.approx(outcome.objective)


def test_linear_programs_and_their_duals(solver: object) -> None:
    problem = knapsack(integral=False)
    outcome = solver.solve(problem, LIMITS)
    assert outcome.status is SolverStatus.OPTIMAL
    assert outcome.objective == pytest.approx(13.5)  # Chvatal's example: 13 at (2, 0, 1), plus the offset
    assert outcome.bound == pytest.approx(13.5)


def test_highs_gives_row_duals() -> None:
    problem = knapsack(integral=False)
    outcome = solve_with("highs", problem)
    assert outcome.row_duals is not None
    reduced = problem.objective + problem.matrix.T @ outcome.row_duals
    value = -outcome.row_duals @ np.array([5.0, 11.0, 8.0]) + np.maximum(reduced, 0) @ problem.upper
    assert value + problem.offset == pytest.approx(13.5)


def solve_with(name: str, problem: MathProgram) -> SolverOutcome:
    return importlib.import_module(find(name)).solve(problem, LIMITS)


def test_infeasible_is_infeasible(solver: object) -> None:
    impossible = MathProgram(
        objective=np.ones(1),
        offset=0.0,
        matrix=sp.csr_array(np.ones((1, 1))),
        row_lower=np.array([2.0]),
        row_upper=np.array([3.0]),
        lower=np.zeros(1),
        upper=np.ones(1),
        integral=np.array([True]),
    )
    outcome = solver.solve(impossible, LIMITS)
    assert outcome.status is SolverStatus.INFEASIBLE
    assert outcome.bound == math.inf


def hard_problem(count: int = 60, seed: int = 0) -> MathProgram:
    """A market-split-like problem whose root bound is far from its optimum."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(20, 100, size=(5, count)).astype(float)
    return MathProgram(
        objective=rng.integers(20, 100, size=count).astype(float),
        offset=0.0,
        matrix=sp.csr_array(weights),
        row_lower=np.full(5, -math.inf),
        row_upper=np.floor(weights.sum(1) / 2),
        lower=np.zeros(count),
        upper=np.ones(count),
        integral=np.ones(count, dtype=bool),
    )


def test_stops_when_the_question_is_answered(solver: object) -> None:
    problem = hard_problem()
    above = solver.solve(problem, limits(seconds=20.0, falsify_above=100.0))
    assert above.objective > 100.0
    assert above.status in (SolverStatus.ABOVE, SolverStatus.OPTIMAL)
    below = solver.solve(problem, limits(seconds=20.0, prove_below=1e6))
    assert below.bound < 1e6
    assert below.status in (SolverStatus.BELOW, SolverStatus.OPTIMAL)


def test_the_time_limit_keeps_the_bound(solver: object) -> None:
    problem = hard_problem(count=200, seed=1)
    start = time.monotonic()
    outcome = solver.solve(problem, limits(seconds=0.2))
    assert time.monotonic() - start < 10
    if outcome.status is SolverStatus.TIME_LIMIT:
        assert outcome.bound >= outcome.objective
    else:
        assert outcome.status in (SolverStatus.OPTIMAL, SolverStatus.UNKNOWN)  # a licence may refuse the size


@pytest.mark.parametrize("seconds", [0.0, 1e-6, 0.01])
def test_a_search_that_was_stopped_early_has_no_false_bound(solver: object, seconds: float) -> None:
    """HiGHS leaves 0 as the bound of a search that never began; the maximum is far above."""
    problem = hard_problem(count=120)
    outcome = solver.solve(problem, limits(seconds=seconds, prove_below=0.0, falsify_above=1e9))
    assert outcome.bound >= 1000.0


def test_contradictions_are_no_answer() -> None:
    point = np.zeros(1)
    assert consistent(SolverOutcome(SolverStatus.OPTIMAL, 1.0, 0.5, point), 1e-7).status is SolverStatus.NUMERICAL
    assert consistent(SolverOutcome(SolverStatus.TIME_LIMIT, 1.0, -0.0, point), 1e-7).bound == math.inf
    assert consistent(SolverOutcome(SolverStatus.OPTIMAL, 1.0, 1.0, None), 1e-7).bound == math.inf
    assert consistent(SolverOutcome(SolverStatus.OPTIMAL, 1.0, 1.0, point), 1e-7).bound == 1.0


def test_what_the_table_does_not_name_is_unknown() -> None:
    for name in ("kInterrupt", "kUnboundedOrInfeasible", "kIterationLimit", "kObjectiveBound", "anything"):
        assert read_status("highs", name) is SolverStatus.UNKNOWN
    assert read_status("scip", "inforunbd") is SolverStatus.UNKNOWN
    assert read_status("gurobi", "INF_OR_UNBD") is SolverStatus.UNKNOWN


@pytest.mark.parametrize(
    ("solver", "optimal", "nearly"),
    [
        ("highs", "kOptimal", ("kTimeLimit", "kObjectiveBound", "kSolutionLimit", "kInterrupt", "kUnknown")),
        ("scip", "optimal", ("gaplimit", "bestsollimit", "sollimit", "timelimit", "userinterrupt")),
        ("gurobi", "OPTIMAL", ("SUBOPTIMAL", "NUMERIC", "TIME_LIMIT", "SOLUTION_LIMIT", "INTERRUPTED")),
    ],
)
def test_nearly_optimal_is_not_optimal(solver, optimal, nearly):
    assert read_status(solver, optimal) is SolverStatus.OPTIMAL
    for name in nearly:
        assert read_status(solver, name) not in (SolverStatus.OPTIMAL, SolverStatus.INFEASIBLE), name


@pytest.mark.parametrize("status", list(SolverStatus))
def test_only_trusted_statuses_have_a_bound(status: SolverStatus) -> None:
    outcome = SolverOutcome(status, dual_bound=-1.0)
    trusted = {SolverStatus.OPTIMAL, SolverStatus.BELOW, SolverStatus.ABOVE, SolverStatus.TIME_LIMIT}
    assert (outcome.bound == -1.0) is (status in trusted)
    assert SolverOutcome(status, dual_bound=math.nan).bound == math.inf


def test_problems_and_outcomes_survive_the_wire() -> None:
    problem, decoded = decode_request(encode_request(knapsack(), limits(memory_bytes=7, prove_below=0.0)))
    assert decoded == limits(memory_bytes=7, prove_below=0.0)
    assert (problem.matrix != knapsack().matrix).nnz == 0
    assert problem.integral.all()
    assert problem.row_lower[0] == -math.inf
    outcome = decode_outcome(encode_outcome(SolverOutcome(SolverStatus.OPTIMAL, 1.0, 2.0, np.ones(2), detail="ok")))
    assert (outcome.objective, outcome.dual_bound, outcome.detail) == (1.0, 2.0, "ok")
    assert outcome.row_duals is None
    assert outcome.point.tolist() == [1.0, 1.0]


def test_problems_are_checked() -> None:
    import dataclasses

    with pytest.raises(InputError, match="contains NaN"):
        dataclasses.replace(knapsack(), objective=np.array([1.0, math.nan, 0.0]))
    with pytest.raises(InputError, match=r"lower has shape \(2,\)"):
        dataclasses.replace(knapsack(), lower=np.zeros(2))


def test_unknown_solvers_are_named() -> None:
    with pytest.raises(ConfigError, match="solver 'cplex' is not known; choose one of: highs, scip, gurobi"):
        find("cplex")
    with (
        SolverProcess("surebound.solvers.nowhere") as process,
        pytest.raises(SolverError, match="could not be started: ModuleNotFoundError"),
    ):
        process.solve(knapsack(), LIMITS)


def test_a_process_survives_whatever_its_child_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One after the other in one SolverProcess: it restarts its child after each crash."""
    expected = {
        "OPTIMAL": SolverStatus.OPTIMAL,
        "raise": SolverStatus.UNKNOWN,
        "print": SolverStatus.OPTIMAL,
        "memory": SolverStatus.MEMORY_LIMIT,
        "crash": SolverStatus.CRASHED,
        "killed": SolverStatus.KILLED,
        "hang": SolverStatus.TIME_LIMIT,
    }
    script = tmp_path / "behaviour"
    monkeypatch.setenv("SUREBOUND_FAKE_SOLVER", str(script))
    with SolverProcess("tests.verify.fake_solver") as process:
        for behaviour, status in expected.items():
            script.write_text(behaviour)
            outcome = process.solve(knapsack(), limits(seconds=0.1, memory_bytes=1 << 28))
            assert outcome.status is status, behaviour
            assert outcome.bound == math.inf or behaviour in ("OPTIMAL", "print")


def test_a_child_is_used_again_and_killed_at_the_end() -> None:
    with SolverProcess(find("highs")) as process:
        first = process.solve(knapsack(), LIMITS)
        pid = process.pid
        second = process.solve(knapsack(integral=False), LIMITS)
        assert process.pid == pid
    assert (first.status, second.status) == (SolverStatus.OPTIMAL, SolverStatus.OPTIMAL)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_does_not_even_read_is_killed_in_time() -> None:
    """The limit is the parent's: a stopped child holds neither the problem's bytes nor us."""
    with SolverProcess(find("highs")) as process:
        assert process.solve(knapsack(), LIMITS).status is SolverStatus.OPTIMAL
        pid = process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        count = 200_000  # more than a pipe holds
        large = MathProgram(
            objective=np.ones(count),
            offset=0.0,
            matrix=sp.csr_array((0, count)),
            row_lower=np.zeros(0),
            row_upper=np.zeros(0),
            lower=np.zeros(count),
            upper=np.ones(count),
            integral=np.zeros(count, dtype=bool),
        )
        outcome = process.solve(large, limits(seconds=0.1))
        assert (outcome.status, outcome.bound) == (SolverStatus.TIME_LIMIT, math.inf)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert process.solve(knapsack(), LIMITS).status is SolverStatus.OPTIMAL  # by a new child


@pytest.mark.parametrize("status", [SolverStatus.TIME_LIMIT, SolverStatus.UNKNOWN, SolverStatus.NUMERICAL])
def test_a_linear_program_that_was_not_finished_has_no_bound(status: SolverStatus) -> None:
    """The objective of a point that a stopped simplex has reached is below the optimum: it bounds nothing."""
    highspy = pytest.importorskip("highspy")
    problem = knapsack(integral=False)
    count = len(problem.objective)
    told = SimpleNamespace(
        getInfo=lambda: SimpleNamespace(
            primal_solution_status=highspy.SolutionStatus.kSolutionStatusFeasible, objective_function_value=99.0
        ),
        getSolution=lambda: SimpleNamespace(col_value=[0.0] * count, row_dual=[1.0] * len(problem.row_lower)),
    )
    found = importlib.import_module("surebound.solvers.highs")._outcome(told, problem, status, "told", 0.0)
    assert found.bound == math.inf and found.row_duals is None
    done = importlib.import_module("surebound.solvers.highs")._outcome(told, problem, SolverStatus.OPTIMAL, "told", 0.0)
    assert done.bound == -99.0 and done.row_duals is not None


def test_an_integer_program_that_was_stopped_has_only_the_bound_that_was_reported() -> None:
    """What a stopped search leaves as its dual bound may be 0, whatever the maximum is."""
    highspy = pytest.importorskip("highspy")
    problem = knapsack()
    told = SimpleNamespace(
        getInfo=lambda: SimpleNamespace(
            primal_solution_status=highspy.SolutionStatus.kSolutionStatusNone, mip_dual_bound=0.0
        ),
        getSolution=lambda: SimpleNamespace(col_value=[], row_dual=[]),
    )
    outcome = importlib.import_module("surebound.solvers.highs")._outcome
    assert outcome(told, problem, SolverStatus.TIME_LIMIT, "told", math.inf).bound == math.inf
    assert outcome(told, problem, SolverStatus.TIME_LIMIT, "told", 14.5).bound == 14.5
