"""Walks over linear regions: each point is the best of its region, and the next is better."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from surebound.bounds.reduced.passes import Passes
from surebound.bounds.reduced.reduction import reduce_network
from surebound.bounds.reduced.targets import Targets
from surebound.numerics import SOLVER_FEASIBILITY, Soundness
from surebound.region import LinfBall
from surebound.search.signs.leaves import Solve
from surebound.search.signs.region_walk import walk
from surebound.search.workspace import Workspace
from surebound.solvers import Limits, MathProgram, SolverOutcome
from tests.verify.oracle import tiny_net

ROW = torch.tensor([[-1.0, 1.0]])
TARGET, ONE = torch.tensor([0]), torch.ones(1, 1, dtype=torch.bool)


def solver(workspace: Workspace) -> Solve:
    def solve(problem: MathProgram) -> SolverOutcome:
        return workspace.solver("highs").solve(problem, Limits(SOLVER_FEASIBILITY, 600.0))

    return solve


def margins(passes: Passes, x: Tensor) -> tuple[Tensor, Tensor]:
    """Margins (N,) and signs (N, U) at points (N, n)."""
    v, inside = passes.values(x)
    return v @ passes.outputs.up[0] + passes.outputs.up_offset[0], inside > 0


@pytest.mark.parametrize("seed", range(3))
def test_each_point_is_the_best_of_its_region_and_the_next_is_better(seed: int) -> None:
    net = tiny_net([2, 6, 5, 2], seed, scale=2.5).double()
    region = LinfBall(torch.full((1, 2), 0.5, dtype=torch.float64), "1/2", (0, 1))
    torch.manual_seed(seed)
    start, samples = torch.rand(2, dtype=torch.float64), torch.rand(40_000, 2, dtype=torch.float64)
    with Workspace(net) as workspace:
        program = workspace.program(region.reference)
        box = region.interval(Soundness.REAL)
        passes = Passes(reduce_network(program, box, ROW.double(), Soundness.REAL), torch.float64)
        points = list(walk(Targets(passes, ONE), start, TARGET, solver(workspace), lambda: True))
    assert points
    found, _ = margins(passes, torch.stack(points))
    assert bool((found.diff() > 0).all())
    everywhere, signs = margins(passes, samples)
    at_start, start_signs = margins(passes, start.unsqueeze(0))
    same = (signs == start_signs).all(1)
    assert int(same.sum()) > 10, "the region is large enough to be sampled"
    assert found[0] >= at_start[0] and found[0] >= everywhere[same].max() - 1e-9
    for point in points:
        assert bool((point >= box.lower[0] - 1e-9).all() and (point <= box.upper[0] + 1e-9).all())


def test_a_walk_ends_when_it_is_told_to_and_when_the_solver_knows_nothing() -> None:
    net = tiny_net([2, 6, 5, 2], 0, scale=2.5).double()
    region = LinfBall(torch.full((1, 2), 0.5, dtype=torch.float64), "1/2", (0, 1))
    with Workspace(net) as workspace:
        box = region.interval(Soundness.REAL)
        reduced = reduce_network(workspace.program(region.reference), box, ROW.double(), Soundness.REAL)
        passes, start = Passes(reduced, torch.float64), torch.rand(2, dtype=torch.float64)
        assert not list(walk(Targets(passes, ONE), start, TARGET, solver(workspace), lambda: False))
        late = solver(workspace)

        def useless(problem: MathProgram) -> SolverOutcome:
            return dataclasses.replace(late(problem), point=None)

        assert not list(walk(Targets(passes, ONE), start, TARGET, useless, lambda: True))
