"""Leaves where every ReLU is split: the network is affine there, and a linear program decides.

The program's multipliers of the splits are the beta of the leaf's bound, so that the proof is the usual one, with
its rounding paid; the solver is not trusted. Its optimum is a candidate for a counterexample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its parts are loaded when they are used: `sparse` takes as long as a small query
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds.reduced.passes import Multipliers, Pass, Passes
from surebound.search.domains import Domains
from surebound.solvers import Outcome, Problem, SolverStatus

Vector = NDArray[np.float64]
Solve = Callable[[Problem], Outcome]


@dataclass(frozen=True, eq=False)
class Leaf:
    """What is known of a leaf after its linear program."""

    upper: float  # sound
    point: Tensor | None = None  # (n,) float64: where the margin is largest


@dataclass(frozen=True, eq=False)
class _Rows:
    """Splits sign * (matrix x + constant) >= 0 as affine functions of the input, U of them, n inputs."""

    matrix: Vector  # (U, n), times the sign
    constant: Vector  # (U,), times the sign


def settle(passes: Passes, leaf: Domains, solve: Solve) -> Leaf:
    """Bound the target over one leaf; float64 passes."""
    plain = _bound(passes, leaf, torch.zeros_like(leaf.m.betas))
    upper = float(passes.upper(plain))
    problem = None if upper <= 0 else _problem(passes, leaf, plain)
    if problem is None:
        return Leaf(upper)
    outcome = solve(problem)
    if outcome.status is SolverStatus.INFEASIBLE:
        duals = _infeasible(problem, upper, solve)
        return Leaf(upper if duals is None else min(upper, _sound(passes, leaf, duals)))
    if outcome.row_duals is not None:
        upper = min(upper, _sound(passes, leaf, outcome.row_duals))
    return Leaf(upper, _point(outcome))


def best_point(passes: Passes, leaf: Domains, solve: Solve) -> Tensor | None:
    """The point (n,) of a leaf where the margin is largest, by the solver's word alone; None if it knows none."""
    problem = _problem(passes, leaf, _bound(passes, leaf, torch.zeros_like(leaf.m.betas)))
    return None if problem is None else _point(solve(problem))


def _point(outcome: Outcome) -> Tensor | None:
    return None if outcome.point is None else torch.from_numpy(outcome.point.copy())


def _bound(passes: Passes, leaf: Domains, betas: Tensor) -> Pass:
    rows = passes.outputs
    m = replace(leaf.m, betas=betas).to(torch.float64)
    return passes.pull(rows.up[leaf.target], rows.up_offset[leaf.target], m)


def _sound(passes: Passes, leaf: Domains, duals: Vector) -> float:
    """The sound bound that multipliers of the splits give."""
    betas = torch.from_numpy(np.abs(duals)).unsqueeze(0)
    return float(passes.upper(_bound(passes, leaf, betas)))


def _rows(passes: Passes, m: Multipliers) -> _Rows:
    """Every split's input as an affine function of the network's input, from above in the split's direction."""
    matrix, constant = [np.zeros((0, passes.inputs))], [np.zeros(0)]
    for layer in passes.layers:
        sign = m.signs[0, layer.own].double()
        up = (sign > 0).unsqueeze(1)
        a = torch.where(up, layer.up, -layer.low)
        offset = torch.where(sign > 0, layer.up_offset, -layer.low_offset)
        free = Multipliers(m.signs, m.alphas.double(), torch.zeros_like(m.betas).double())
        found = passes.pull(a, offset, free[torch.zeros(len(a), dtype=torch.int64)])
        matrix.append(found.a.numpy())
        constant.append(found.offset.numpy())
    return _Rows(np.concatenate(matrix), np.concatenate(constant))


def _problem(passes: Passes, leaf: Domains, plain: Pass) -> Problem | None:
    """Maximise the target over a leaf; None where a number is not finite, which no solver takes."""
    rows = _rows(passes, leaf.m)
    objective, offset = plain.a[0].numpy(), float(plain.offset)
    if not all(bool(np.isfinite(v).all()) for v in (rows.matrix, rows.constant, objective, offset)):
        return None
    return Problem(
        objective=objective,
        offset=offset,
        matrix=scipy.sparse.csr_array(rows.matrix),
        row_lower=-rows.constant,
        row_upper=np.full(len(rows.constant), np.inf),
        lower=passes.lower.numpy(),
        upper=passes.upper_end.numpy(),
        integral=np.zeros(len(objective), dtype=bool),
    )


def _infeasible(problem: Problem, upper: float, solve: Solve) -> Vector | None:
    """Multipliers for a leaf that holds no input: those of the least total violation, scaled up."""
    count, inputs = problem.matrix.shape
    elastic = Problem(
        objective=np.concatenate([np.zeros(inputs), -np.ones(count)]),
        offset=0.0,
        matrix=scipy.sparse.csr_array(scipy.sparse.hstack([problem.matrix, scipy.sparse.identity(count)])),
        row_lower=problem.row_lower,
        row_upper=problem.row_upper,
        lower=np.concatenate([problem.lower, np.zeros(count)]),
        upper=np.concatenate([problem.upper, np.full(count, np.inf)]),
        integral=np.zeros(inputs + count, dtype=bool),
    )
    outcome = solve(elastic)
    if outcome.row_duals is None or not outcome.objective < 0:
        return None
    scale = 2 * (upper + 1e-6) / -outcome.objective  # a violation this large, twice, outweighs the margin
    duals: Vector = scale * outcome.row_duals
    return duals
