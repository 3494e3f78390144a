"""Gurobi through gurobipy, an optional extra; its free licence refuses more than 2000 columns or rows.

Requirement: pip install 'surebound[gurobi]' and a licence. Returns: a SolverOutcome. Property: bounds hold up to
Gurobi's tolerances. Reference: Gurobi Optimizer Reference Manual.
"""

from __future__ import annotations

import math
from typing import Any

import gurobipy as gp
import numpy as np

from surebound.solvers.outcome import SolverOutcome, SolverStatus, consistent, read_status
from surebound.solvers.problem import Limits, MathProgram

_NAMES = {getattr(gp.GRB.Status, name): name for name in dir(gp.GRB.Status) if not name.startswith("_")}


def solve(problem: MathProgram, limits: Limits) -> SolverOutcome:
    """Solve in this process; a refused licence is UNKNOWN with the reason in its detail."""
    try:
        with gp.Env(params={"OutputFlag": 0}) as environment, gp.Model(env=environment) as model:
            return _solve(model, problem, limits)
    except gp.GurobiError as error:
        full = error.errno == gp.GRB.Error.OUT_OF_MEMORY
        kind = SolverStatus.MEMORY_LIMIT if full else SolverStatus.UNKNOWN
        return SolverOutcome(kind, detail=f"Gurobi: {error}")


def _solve(model: Any, problem: MathProgram, limits: Limits) -> SolverOutcome:
    model.Params.Threads = limits.threads
    model.Params.FeasibilityTol = max(limits.feasibility, 1e-9)
    model.Params.IntFeasTol = max(limits.feasibility, 1e-9)
    model.Params.MIPGap = 0.0
    if math.isfinite(limits.seconds):
        model.Params.TimeLimit = max(limits.seconds, 0.0)
    if problem.binaries and limits.falsify_above is not None:
        model.Params.BestObjStop = limits.falsify_above
    if problem.binaries and limits.prove_below is not None:
        model.Params.BestBdStop = limits.prove_below
    x = model.addMVar(
        len(problem.lower),
        lb=problem.lower,
        ub=problem.upper,
        vtype=np.where(problem.integral, gp.GRB.INTEGER, gp.GRB.CONTINUOUS),
    )
    for end, sense in ((problem.row_lower, ">"), (problem.row_upper, "<")):
        used = np.flatnonzero(np.isfinite(end))
        if len(used):
            model.addMConstr(problem.matrix[used], x, sense, end[used])
    model.setObjective(problem.objective @ x + problem.offset, gp.GRB.MAXIMIZE)
    model.optimize()
    return _outcome(model, x, problem, limits)


def _outcome(model: Any, x: Any, problem: MathProgram, limits: Limits) -> SolverOutcome:
    name = _NAMES.get(model.Status, str(model.Status))
    status = read_status("gurobi", name)
    point = np.asarray(x.X, dtype=np.float64) if model.SolCount else None
    if problem.binaries:
        bound = float(model.ObjBound)
    else:
        bound = float(model.ObjVal) if status is SolverStatus.OPTIMAL else math.inf
    # One status for both early stops: the numbers tell which.
    if status is SolverStatus.ABOVE and limits.prove_below is not None and bound < limits.prove_below:
        status = SolverStatus.BELOW
    outcome = SolverOutcome(status, problem.value(point), bound if abs(bound) < 1e100 else math.inf, point, detail=name)
    return consistent(outcome, limits.feasibility)
