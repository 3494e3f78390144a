"""The linear program of one sub-problem: every free ReLU relaxed by its triangle, every split one on its side.

Ascent in the multipliers comes close to its optimum where few ReLUs are split, and gets stuck where many are; above all
it cannot tell that signs contradict each other. Where it is stuck, a linear program pays. The solver is not trusted:
its multipliers are evaluated by a sound pass (Passes.pull_through), and its solution is only where a counterexample is
looked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its parts are loaded when they are used: `sparse` takes as long as a small query
import torch
from torch import Tensor

from surebound.bounds.reduced.passes import Passes
from surebound.bounds.reduced.targets import TargetRow, Targets
from surebound.search.signs.domains import Domains
from surebound.search.signs.leaves import Solve, Vector
from surebound.solvers import MathProgram

#: The coefficient of a ReLU's input may be so many times the largest one of a ReLU. A limit makes contradictory signs
#: a program like any other: its optimum is then far below 0.
_LARGEST = 50.0


@dataclass(frozen=True, eq=False)
class Optimum:
    """The result of a sub-problem's linear program."""

    upper: float  # sound
    point: Tensor  # (n,) float64, in the box
    gaps: Tensor  # (1, U): how far each ReLU's output lies above ReLU of its input
    through: Tensor  # (1, U): the coefficients of ReLU inputs that give the bound


def optimum(targets: Targets, domain: Domains, own: Tensor, solve: Solve) -> Optimum | None:
    """Solve the program of one sub-problem, whose bound has the coefficients ``own`` (1, U) of ReLUs; float64 passes.

    Its rows are mixed as its weights say. Return None if the solver fails.
    """
    passes, row = targets.passes, targets.mixed(domain.case, domain.weights)
    problem = _problem(passes, row, domain, float(own.abs().max()))
    outcome = None if problem is None else solve(problem)
    if outcome is None or outcome.row_duals is None or outcome.point is None:
        return None
    n, count = passes.inputs, passes.unstable
    through = torch.from_numpy(-outcome.row_duals[:count]).unsqueeze(0)
    found = passes.pull_through(row.a, row.offset, domain.m.signs, through, row.rounding_size)
    x, y, z = (torch.from_numpy(part.copy()) for part in np.split(outcome.point, [n, n + count, n + 2 * count])[:3])
    gaps = (y - passes.activated(z.unsqueeze(0))).clamp(min=0)
    return Optimum(float(passes.upper(found)), x.clamp(passes.lower, passes.upper_end), gaps, through)


def _problem(passes: Passes, row: TargetRow, domain: Domains, largest: float) -> MathProgram | None:
    """Build the program: columns inputs, ReLU outputs y and inputs x, two slacks of each x; rows x, y between lines.

    Return None where a number is not finite, which no solver takes.
    """
    count, signs = passes.unstable, domain.m.signs[0].numpy()
    rows, constant = _inputs_of(passes)
    left, right = passes.least.double().numpy(), passes.steepest.double().numpy()
    lower, upper, chord, top = (_of_all(passes, name) for name in ("lower", "upper", "chord", "top"))
    lower, upper = np.where(signs > 0, 0.0, lower), np.where(signs < 0, 0.0, upper)
    side = np.where(signs > 0, right, left)
    lines = [np.where(signs == 0, slope, side) for slope in (left, right, chord)]
    objective = np.zeros(passes.columns + 3 * count)
    objective[: row.a.shape[1]] = row.a[0].numpy()
    objective[passes.columns + count :] = -_LARGEST * max(largest, 1e-6)  # heuristic: the program's objective
    offset = float(row.offset[0])
    if not all(bool(np.isfinite(v).all()) for v in (rows.data, constant, objective, offset, lower, upper)):
        return None
    sparse, one = scipy.sparse, scipy.sparse.identity(count)
    output = sparse.hstack([sparse.csr_array((count, passes.inputs)), one])
    blocks = [[-rows, one, one, -one]]
    blocks += [[output, -sparse.diags_array(slope), None, None] for slope in lines]
    none, free, slack = np.zeros(count), np.full(count, np.inf), np.zeros(2 * count)
    return MathProgram(
        objective=objective,
        offset=offset,
        matrix=sparse.csr_array(sparse.block_array(blocks)),
        row_lower=np.concatenate([constant, none, none, -free]),
        row_upper=np.concatenate([constant, free, free, np.where(signs == 0, top, 0.0)]),
        lower=np.concatenate([passes.lower.numpy(), -free, lower, slack]),
        upper=np.concatenate([passes.upper_end.numpy(), free, upper, slack + np.inf]),
        integral=np.zeros(len(objective), dtype=bool),
    )


def _of_all(passes: Passes, name: str) -> Vector:
    """Concatenate an attribute of all layers: (U,)."""
    found: Vector = torch.cat([getattr(layer, name) for layer in passes.layers]).numpy()
    return found


def _inputs_of(passes: Passes) -> tuple[scipy.sparse.csr_array, Vector]:
    """Return the ReLUs' inputs as affine functions (U, V), (U,) of inputs and outputs: the upper rows."""
    constant, parts = np.zeros(passes.unstable), list[tuple[Vector, ...]]()
    for layer in passes.layers:
        row, column, values = (part.numpy() for part in layer.up.triples())
        parts.append((row + layer.own.start, column, values))
        constant[layer.own] = 0.5 * (layer.up_offset + layer.low_offset).numpy()
    row, column, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    return scipy.sparse.csr_array((values, (row, column)), shape=(passes.unstable, passes.columns)), constant
