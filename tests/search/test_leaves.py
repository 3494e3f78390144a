"""Leaves of sub-problems, where every ReLU has a sign: the optimum, whatever the solver says."""

from __future__ import annotations

import pytest
import torch

from surebound.search.signs.leaves import settle
from surebound.solvers import MathProgram, SolverOutcome, SolverStatus
from tests.search.test_relaxation import by_highs, domain, passes_of, reference, targets_of


def by_a_liar(problem: MathProgram) -> SolverOutcome:
    """Call every program infeasible, but for one that asks for multipliers of a contradiction, which it makes up."""
    told = by_highs(problem)
    return SolverOutcome(SolverStatus.INFEASIBLE, row_duals=told.row_duals)


@pytest.mark.parametrize("seed", range(4))
def test_leaves_are_bounded_by_their_optimum(seed: int) -> None:
    passes = passes_of(seed)
    x = torch.rand(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    v, inside = passes.values(x)
    # Over a row that is positive nearly everywhere a bound does not end before the linear program.
    margins = v @ passes.outputs.up[0] + passes.outputs.up_offset[0]
    passes.outputs.up_offset[0] += 1 - margins.min()
    margins = margins + (1 - margins.min())
    asked = 0
    for point in range(12):
        signs = {i: 1 if float(z) > 0 else -1 for i, z in enumerate(inside[point])}
        leaf = domain(passes, signs)
        expected = reference(passes, leaf.m.signs[0])
        assert expected is not None
        found = settle(targets_of(passes), leaf, by_highs)
        same = (leaf.m.signs * inside.sign() >= 0).all(1)
        assert bool((margins[same] <= found.upper).all())
        assert found.upper == pytest.approx(expected, abs=1e-5)
        assert settle(targets_of(passes), leaf, by_a_liar).upper >= expected - 1e-9
        asked += 1
    assert asked == 12
