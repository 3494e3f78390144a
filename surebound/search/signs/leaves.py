"""Leaves where every ReLU is split: the network is affine there, and a linear program decides.

The program's multipliers of the rows and of the splits are the weights and the beta of the leaf's bound, so that the
proof is the usual one, with its rounding paid; the solver is not trusted. Its optimum is a candidate for a witness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its parts are loaded when they are used: `sparse` takes as long as a small query
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds.linear.ball import ball_corner, ball_maximum
from surebound.bounds.reduced.passes import Multipliers, Pass, Passes
from surebound.bounds.reduced.targets import Targets
from surebound.norm_ball import Ball
from surebound.numerics import Soundness
from surebound.search.signs.domains import Domains
from surebound.solvers import MathProgram, SolverOutcome, SolverStatus

Vector = NDArray[np.float64]
Solve = Callable[[MathProgram], SolverOutcome]


@dataclass(frozen=True, eq=False)
class Leaf:
    """The result of a leaf's linear program."""

    upper: float  # sound
    weights: Tensor  # (1, S) of the rows, and
    betas: Tensor  # (1, U) multipliers of the splits, that give the bound
    point: Tensor | None = None  # (n,) float64: where the smallest row is largest


@dataclass(frozen=True, eq=False)
class _Affine:
    """Functions matrix x + constant of the n inputs: the case's rows, or the splits, each times its sign, >= 0."""

    matrix: Vector  # (R, n)
    constant: Vector  # (R,)

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.matrix).all() and np.isfinite(self.constant).all())


def settle(targets: Targets, leaf: Domains, solve: Solve) -> Leaf:
    """Bound the case of one leaf; float64 passes."""
    weights, betas = leaf.weights, torch.zeros_like(leaf.m.betas).double()
    upper = _bound(targets, leaf, weights, betas)
    program = None if upper <= 0 else _Program.of(targets, leaf)
    if program is None:
        return Leaf(upper, weights, betas)
    if targets.passes.ball is not None:
        return _in_ball(targets, leaf, program, targets.passes.ball, upper)
    outcome = solve(program.problem())
    if outcome.status is SolverStatus.INFEASIBLE:  # the signs alone contradict each other: say how
        duals = _contradiction(program.splits, program.lower, program.upper, upper, solve)
        if duals is not None:
            betas = _sizes(duals)
            upper = min(upper, _bound(targets, leaf, weights, betas))
        return Leaf(upper, weights, betas)
    if outcome.row_duals is not None:
        weights, duals = program.multipliers(outcome.row_duals, leaf.weights)
        betas = _sizes(duals)
        upper = min(upper, _bound(targets, leaf, weights, betas))
    return Leaf(upper, weights, betas, program.point(outcome))


def best_point(targets: Targets, leaf: Domains, solve: Solve) -> Tensor | None:
    """Return the point (n,) of a leaf where the smallest row is largest, by the solver's word alone."""
    program = _Program.of(targets, leaf)
    return None if program is None else program.point(solve(program.problem()))


def _pulled(passes: Passes, a: Tensor, offset: Tensor, m: Multipliers, rounding_size: Tensor | None = None) -> Pass:
    return passes.pull(a, offset, m.to(torch.float64), rounding_size)


def _bound(targets: Targets, leaf: Domains, weights: Tensor, betas: Tensor) -> float:
    row = targets.mixed(leaf.case, weights)
    m = replace(leaf.m, betas=betas)
    return float(targets.passes.upper(_pulled(targets.passes, row.a, row.offset, m, row.rounding_size)))


def _in_ball(targets: Targets, leaf: Domains, program: _Program, ball: Ball, upper: float) -> Leaf:
    """Bound the case of a leaf over a ball: the bound is convex in the splits' multipliers, and they are >= 0.

    Its slope by a multiplier is what that multiplies, at the ball's point where the bound is attained (Danskin).
    """
    weights = leaf.weights[0, torch.from_numpy(program.valid)].double()
    row, constant = weights @ torch.from_numpy(program.rows.matrix), weights @ torch.from_numpy(program.rows.constant)
    matrix, offsets = torch.from_numpy(program.splits.matrix), torch.from_numpy(program.splits.constant)
    best = torch.zeros(len(offsets), dtype=torch.float64)

    def bound(betas: Vector) -> tuple[float, Vector]:
        beta = torch.from_numpy(betas)
        a = (row + beta @ matrix).reshape(1, 1, -1)
        value = ball_maximum(a, ball, (constant + beta @ offsets).reshape(1, 1), Soundness.NONE)
        point = ball_corner(a[0], ball)[0]
        slope: Vector = (matrix @ point + offsets).numpy()
        return float(value), slope

    if len(best):
        from scipy.optimize import minimize  # a second, which most queries do not need

        limits = [(0.0, None)] * len(best)
        found = minimize(bound, best.numpy(), jac=True, bounds=limits, method="L-BFGS-B", options={"maxiter": 200})
        if bool(np.isfinite(found.x).all()):
            best = torch.from_numpy(np.maximum(found.x, 0.0))
    betas = best.unsqueeze(0)
    point = ball_corner((row + best @ matrix).unsqueeze(0), ball)[0]
    return Leaf(min(upper, _bound(targets, leaf, leaf.weights, betas)), leaf.weights, betas, point)


def _sizes(duals: Vector) -> Tensor:
    """Return multipliers of the splits (1, U), whose signs are those of the splits."""
    return torch.from_numpy(np.abs(duals)).unsqueeze(0)


@dataclass(frozen=True, eq=False)
class _Program:
    """Maximise the smallest row over the box and the splits; of one row, the row itself."""

    rows: _Affine
    splits: _Affine
    lower: Vector
    upper: Vector
    valid: NDArray[np.bool_]  # (S,)

    @classmethod
    def of(cls, targets: Targets, leaf: Domains) -> _Program | None:
        """Return None where a number is not finite, which no solver takes."""
        passes, valid = targets.passes, targets.valid[leaf.case[0]]
        up, offset = targets.rows(leaf.case)
        a, b = up[0][valid], offset[0][valid]
        m = leaf.m[torch.zeros(len(a), dtype=torch.int64)]
        plain = _pulled(passes, a, b, replace(m, betas=torch.zeros_like(m.betas)))
        rows = _Affine(plain.a.numpy(), plain.offset.numpy())
        splits = _splits(passes, leaf.m)
        if not (rows.finite and splits.finite):
            return None
        return cls(rows, splits, passes.lower.numpy(), passes.upper_end.numpy(), valid.numpy())

    @property
    def several(self) -> bool:
        return len(self.rows.constant) > 1

    def problem(self) -> MathProgram:
        n, more = len(self.lower), int(self.several)
        objective = np.append(np.zeros(n), 1.0) if self.several else self.rows.matrix[0]
        matrix, least = self.splits.matrix, -self.splits.constant
        if self.several:  # maximise t with every row >= t
            whole = np.concatenate([self.rows.matrix, matrix])
            last = np.where(np.arange(len(whole)) < len(self.rows.matrix), -1.0, 0.0)
            matrix = np.hstack([whole, last[:, None]])
            least = np.concatenate([-self.rows.constant, least])
        return MathProgram(
            objective=objective,
            offset=0.0 if self.several else float(self.rows.constant[0]),
            matrix=scipy.sparse.csr_array(matrix),
            row_lower=least,
            row_upper=np.full(len(least), np.inf),
            lower=np.append(self.lower, [-np.inf] * more),
            upper=np.append(self.upper, [np.inf] * more),
            integral=np.zeros(n + more, dtype=bool),
        )

    def multipliers(self, duals: Vector, weights: Tensor) -> tuple[Tensor, Vector]:
        """Return weights (1, S) of the rows, of sum 1, and multipliers of the splits that go with them."""
        if not self.several:
            return weights, duals
        sizes = np.abs(duals)
        count, total = len(self.rows.constant), sizes[: len(self.rows.constant)].sum()
        if not total > 0:
            return weights, sizes[count:]
        spread = np.zeros(len(self.valid))
        spread[self.valid] = sizes[:count] / total
        return torch.from_numpy(spread).unsqueeze(0), sizes[count:] / total

    def point(self, outcome: SolverOutcome) -> Tensor | None:
        return None if outcome.point is None else torch.from_numpy(outcome.point[: len(self.lower)].copy())


def _splits(passes: Passes, m: Multipliers) -> _Affine:
    """Return every split's input as an affine function of the network's input, from above in the split's direction."""
    matrix, constant = [np.zeros((0, passes.inputs))], [np.zeros(0)]
    for layer in passes.layers:
        sign = m.signs[0, layer.own].double()
        up = (sign > 0).unsqueeze(1)
        a = torch.where(up, layer.up.dense(), -layer.low.dense())
        offset = torch.where(sign > 0, layer.up_offset, -layer.low_offset)
        free = Multipliers(m.signs, m.alphas.double(), torch.zeros_like(m.betas).double())
        found = passes.pull(a, offset, free[torch.zeros(len(a), dtype=torch.int64)])
        matrix.append(found.a.numpy())
        constant.append(found.offset.numpy())
    return _Affine(np.concatenate(matrix), np.concatenate(constant))


def _contradiction(splits: _Affine, lower: Vector, upper: Vector, bound: float, solve: Solve) -> Vector | None:
    """Return multipliers for a leaf that holds no input: those of the least total violation, scaled up."""
    count, inputs = splits.matrix.shape
    elastic = MathProgram(
        objective=np.concatenate([np.zeros(inputs), -np.ones(count)]),
        offset=0.0,
        matrix=scipy.sparse.csr_array(scipy.sparse.hstack([splits.matrix, scipy.sparse.identity(count)])),
        row_lower=-splits.constant,
        row_upper=np.full(count, np.inf),
        lower=np.concatenate([lower, np.zeros(count)]),
        upper=np.concatenate([upper, np.full(count, np.inf)]),
        integral=np.zeros(inputs + count, dtype=bool),
    )
    outcome = solve(elastic)
    if outcome.row_duals is None or not outcome.objective < 0:
        return None
    # heuristic: any multipliers are sound; a violation this large, twice, outweighs the margin.
    scale = 2 * (bound + 1e-6) / -outcome.objective
    duals: Vector = scale * outcome.row_duals
    return duals
