"""Linear programs of sub-problems: the optimum, soundly; signs that contradict each other; solvers that fail."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from surebound.bounds.reduced.passes import Multipliers, Passes
from surebound.bounds.reduced.reduction import reduce_network
from surebound.bounds.reduced.targets import Targets
from surebound.graph import program_of
from surebound.numerics import SOLVER_FEASIBILITY, Soundness
from surebound.region import LinfBall
from surebound.search.signs.domains import Domains
from surebound.search.signs.relaxation import optimum
from surebound.solvers import Limits, MathProgram, SolverOutcome, SolverStatus
from surebound.solvers.highs import solve
from tests.verify.oracle import tiny_net

ROW = torch.tensor([[-1.0, 1.0]])


def by_highs(problem: MathProgram) -> SolverOutcome:
    return solve(problem, Limits(SOLVER_FEASIBILITY, 60.0))


def passes_of(seed: int) -> Passes:
    net = tiny_net([2, 12, 8, 2], seed, scale=2.5).double()
    region = LinfBall(torch.full((1, 2), 0.5, dtype=torch.float64), "1/2", (0, 1))
    box = region.interval(Soundness.REAL)
    reduced = reduce_network(program_of(net, region.reference), box, ROW.double(), Soundness.REAL)
    assert reduced.unstable >= 4
    return Passes(reduced, torch.float64)


def domain(passes: Passes, signs: dict[int, int]) -> Domains:
    chosen = torch.zeros(1, passes.unstable, dtype=torch.int8)
    for at, sign in signs.items():
        chosen[0, at] = sign
    alphas = torch.full((1, passes.unstable), 0.5, dtype=torch.float64)
    m = Multipliers(chosen, alphas, torch.zeros_like(alphas))
    return Domains.unknown(torch.tensor([0]), torch.ones(1, 1, dtype=torch.float64), m)


def targets_of(passes: Passes) -> Targets:
    return Targets(passes, torch.ones(1, 1, dtype=torch.bool))


def reference(passes: Passes, signs: Tensor) -> float | None:
    """The optimum of the relaxation, written down row by row for scipy; None: no point has these signs."""
    n, count = passes.inputs, passes.unstable
    equal, equal_to, below, below_than = [], [], [], []
    ends: list[tuple[float, float | None]] = [(0.0, 1.0)] * n + [(0.0, None)] * count
    for layer in passes.layers:
        rows = layer.up.dense()
        for k in range(len(rows)):
            at = layer.own.start + k
            x, y = np.zeros(n + count), np.eye(n + count)[n + at]
            x[: layer.up.width] = rows[k].numpy()
            b, low, high = (float(v[k]) for v in (layer.up_offset, layer.lower, layer.upper))
            low, high = (0.0 if signs[at] > 0 else low), (0.0 if signs[at] < 0 else high)
            below += [x, -x]
            below_than += [high - b, b - low]
            if signs[at]:
                equal.append(y - (x if signs[at] > 0 else 0 * x))
                equal_to.append(b if signs[at] > 0 else 0.0)
            else:
                slope = high / (high - low)
                below += [x - y, y - slope * x]
                below_than += [-b, slope * (b - low)]
    cost = np.zeros(n + count)
    cost[: passes.outputs.up.shape[1]] = -passes.outputs.up[0].numpy()
    found = linprog(
        cost, np.array(below), below_than, np.array(equal) if equal else None, equal_to or None, bounds=ends
    )
    return float(passes.outputs.up_offset[0]) - found.fun if found.status == 0 else None


def contradiction(passes: Passes) -> dict[int, int] | None:
    """Signs of two ReLUs of the first layer that no input has, if there are such."""
    first = passes.layers[0]
    for i in range(len(first.lower)):
        for j in range(i):
            for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
                signs = torch.zeros(passes.unstable)
                signs[i], signs[j] = a, b
                if reference(passes, signs) is None:
                    return {i: a, j: b}
    return None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("signs", [{}, {0: 1}, {0: -1, 2: 1}])
def test_the_bound_is_the_optimum_and_holds(seed: int, signs: dict[int, int]) -> None:
    passes = passes_of(seed)
    one = domain(passes, signs)
    expected = reference(passes, one.m.signs[0])
    found = optimum(targets_of(passes), one, torch.ones(1, passes.unstable), by_highs)
    assert found is not None
    assert bool((found.point >= 0).all() and (found.point <= 1).all())
    samples = torch.rand(20_000, 2, dtype=torch.float64)
    v, inside = passes.values(samples)
    margins = v @ passes.outputs.up[0] + passes.outputs.up_offset[0]
    ours = (one.m.signs == 0) | (one.m.signs * inside.sign() >= 0)
    assert bool((margins[ours.all(1)] <= found.upper).all())
    if expected is None:
        assert found.upper < 0
    else:
        assert found.upper == pytest.approx(expected, abs=1e-5)
        assert float(found.gaps.max()) >= 0


def test_signs_that_no_input_has_are_proved() -> None:
    tried = 0
    for seed in range(6):
        passes = passes_of(seed)
        signs = contradiction(passes)
        if signs is None:
            continue
        found = optimum(targets_of(passes), domain(passes, signs), 10 * torch.ones(1, passes.unstable), by_highs)
        assert found is not None and found.upper < 0
        tried += 1
    assert tried >= 2


def test_a_solver_that_knows_nothing_or_lies_gives_no_wrong_bound() -> None:
    passes = passes_of(0)
    one, own = domain(passes, {}), torch.ones(1, passes.unstable)
    assert optimum(targets_of(passes), one, own, lambda problem: SolverOutcome(SolverStatus.NUMERICAL)) is None

    def liar(problem: MathProgram) -> SolverOutcome:
        told = by_highs(problem)
        assert told.row_duals is not None
        return dataclasses.replace(told, row_duals=-3 * told.row_duals, dual_bound=-100.0)

    truth, lie = optimum(targets_of(passes), one, own, by_highs), optimum(targets_of(passes), one, own, liar)
    assert truth is not None and lie is not None
    assert lie.upper >= truth.upper
