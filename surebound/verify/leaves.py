"""Leaves where every ReLU is split: the network is affine there, and a linear program decides.

The program's multipliers of the splits are the beta of the leaf's bound, so that the proof is the usual one, with
its rounding paid; the solver is not trusted. Its optimum is a candidate for a counterexample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.numerics import exact_kernels
from surebound.propagate.backward import Relaxed
from surebound.verify.solvers import Outcome, Problem, SolverStatus

Vector = NDArray[np.float64]
Solve = Callable[[Problem], Outcome]


@dataclass(frozen=True, eq=False)
class Leaf:
    """What is known of a leaf after its linear program."""

    upper: float  # sound
    point: Tensor | None = None  # (*input) float64: where the margin is largest


@dataclass(frozen=True, eq=False)
class SplitRows:
    """Splits sign * (matrix x + constant) >= 0 as affine functions of the input, M of them, N inputs."""

    matrix: Vector  # (M, N), times the sign
    constant: Vector  # (M,), times the sign
    place: dict[str, Tensor]  # by activation: flat positions of its rows, in order


def settle(node: Relaxed, c: Tensor, solve: Solve) -> Leaf:
    """Bound c.z over one leaf, c (1, 1, K)."""
    d = c.new_zeros(1, 1)
    plain = node.evaluate(c, d)
    upper = float(plain.upper)
    rows = split_rows(node)
    objective = _numbers(plain.form.coefficients)
    offset = float(plain.form.offset)
    finite = all(bool(np.isfinite(v).all()) for v in (rows.matrix, rows.constant, objective, offset))
    if upper <= 0 or not finite:
        return Leaf(upper)
    problem = _problem(node, rows, objective, offset)
    outcome = solve(problem)
    if outcome.status is SolverStatus.INFEASIBLE:
        return Leaf(min(upper, _infeasible(node, c, rows, problem, upper, solve)))
    if outcome.row_duals is not None:
        upper = min(upper, _bound(node, c, rows, outcome.row_duals))
    shape = node.bounds[node.program.graph.input].shape[1:]
    point = None if outcome.point is None else torch.from_numpy(outcome.point.copy()).reshape(shape)
    return Leaf(upper, point)


def split_rows(node: Relaxed) -> SplitRows:
    """Every split's input as an affine function of the network's input."""
    matrix, constant, place = [], [], {}
    for name, split in node.splits.items():
        flat = split[0].flatten()
        place[name] = at = flat.nonzero()[:, 0]
        if not len(at):
            continue
        source = node.source(name)
        like = node.bounds[source].lower
        one_hot = like.new_zeros(len(at), flat.numel()).scatter_(1, at.unsqueeze(1), 1.0)
        with torch.no_grad(), exact_kernels():
            form = node.pull(
                source, one_hot.reshape(len(at), *like.shape), like.new_zeros(len(at), 1).double()
            )
        sign = _numbers(flat[at])
        matrix.append(sign[:, None] * _numbers(form.coefficients).reshape(len(at), -1))
        constant.append(sign * _numbers(form.offset))
    inputs = node.bounds[node.program.graph.input].lower.numel()
    return SplitRows(np.concatenate([np.zeros((0, inputs)), *matrix]), np.concatenate([[], *constant]), place)


def _problem(node: Relaxed, rows: SplitRows, objective: Vector, offset: float) -> Problem:
    box = node.bounds[node.program.graph.input]
    return Problem(
        objective=objective,
        offset=offset,
        matrix=sp.csr_array(rows.matrix),
        row_lower=-rows.constant,
        row_upper=np.full(len(rows.constant), np.inf),
        lower=_numbers(box.lower),
        upper=_numbers(box.upper),
        integral=np.zeros(len(objective), dtype=bool),
    )


def _infeasible(node: Relaxed, c: Tensor, rows: SplitRows, problem: Problem, upper: float, solve: Solve) -> float:
    """The bound of a leaf that holds no input: multipliers of the least total violation, scaled up."""
    count, inputs = rows.matrix.shape
    elastic = Problem(
        objective=np.concatenate([np.zeros(inputs), -np.ones(count)]),
        offset=0.0,
        matrix=sp.csr_array(sp.hstack([problem.matrix, sp.identity(count)])),
        row_lower=problem.row_lower,
        row_upper=problem.row_upper,
        lower=np.concatenate([problem.lower, np.zeros(count)]),
        upper=np.concatenate([problem.upper, np.full(count, np.inf)]),
        integral=np.zeros(inputs + count, dtype=bool),
    )
    outcome = solve(elastic)
    if outcome.row_duals is None or not outcome.objective < 0:
        return upper
    scale = 2 * (upper + 1e-6) / -outcome.objective  # a violation this large, twice, outweighs the margin
    return _bound(node, c, rows, scale * outcome.row_duals)


def as_multipliers(node: Relaxed, rows: SplitRows, duals: Vector, dtype: torch.dtype) -> dict[str, Tensor]:
    """Multipliers (M,) of the splits by activation, (1, 1, *value) each."""
    betas, used = {}, 0
    for name, at in rows.place.items():
        split = node.splits[name]
        values = torch.from_numpy(np.abs(duals[used : used + len(at)])).to(dtype)
        used += len(at)
        flat = torch.zeros(split[0].numel(), dtype=dtype).scatter(0, at, values)
        betas[name] = flat.reshape(1, *split.shape)
    return betas


def _bound(node: Relaxed, c: Tensor, rows: SplitRows, duals: Vector) -> float:
    """The sound bound that multipliers of the splits give."""
    betas = as_multipliers(node, rows, duals, c.dtype)
    return float(node.evaluate(c, c.new_zeros(1, 1), betas=betas).upper)


def _numbers(values: Tensor) -> Vector:
    flat = values.detach().double().cpu().numpy()
    return np.array(flat.reshape(-1), dtype=np.float64)
