"""SCIP through PySCIPOpt, an optional extra: slower than HiGHS on these problems, useful as a second opinion.

Requirement: pip install 'surebound[scip]'. Returns: a SolverOutcome. Property: bounds hold up to its tolerances.
Reference: Bolusani et al., The SCIP Optimization Suite 9.0, 2024.
"""

from __future__ import annotations

import math

import numpy as np
import pyscipopt

from surebound.solvers.outcome import SolverOutcome, consistent, read_status
from surebound.solvers.problem import Limits, MathProgram


def solve(problem: MathProgram, limits: Limits) -> SolverOutcome:
    """Solve in this process, on one thread."""
    model = pyscipopt.Model()
    model.hideOutput()
    model.setParam("numerics/feastol", limits.feasibility)
    if math.isfinite(limits.seconds):
        model.setParam("limits/time", max(limits.seconds, 0.0))
    if limits.prove_below is not None:
        model.setParam("limits/dual", limits.prove_below)
    if limits.falsify_above is not None:
        model.setParam("limits/primal", limits.falsify_above)
    variables = _fill(model, problem)
    model.optimize()
    name = str(model.getStatus())
    point = None
    if model.getNSols():
        best = model.getBestSol()
        point = np.array([best[variable] for variable in variables], dtype=np.float64)
    bound = float(model.getDualbound())
    if abs(bound) >= model.infinity():
        bound = math.inf
    outcome = SolverOutcome(read_status("scip", name), problem.value(point), bound, point, detail=name)
    return consistent(outcome, limits.feasibility)


def _fill(model: pyscipopt.Model, problem: MathProgram) -> list[pyscipopt.Variable]:
    ends = zip(problem.lower, problem.upper, problem.integral, strict=True)
    variables = [model.addVar(vtype="I" if whole else "C", lb=_end(low), ub=_end(high)) for low, high, whole in ends]
    matrix = problem.matrix
    for row in range(matrix.shape[0]):
        span = slice(matrix.indptr[row], matrix.indptr[row + 1])
        terms = zip(matrix.data[span], matrix.indices[span], strict=True)
        total = pyscipopt.quicksum(float(value) * variables[column] for value, column in terms)
        low, high = float(problem.row_lower[row]), float(problem.row_upper[row])
        if low == high:
            model.addCons(total == low)
            continue
        if math.isfinite(low):
            model.addCons(total >= low)
        if math.isfinite(high):
            model.addCons(total <= high)
    costs = pyscipopt.quicksum(float(problem.objective[j]) * variables[j] for j in np.flatnonzero(problem.objective))
    model.setObjective(costs + problem.offset, "maximize")
    return variables


def _end(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
