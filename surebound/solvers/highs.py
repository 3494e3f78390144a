"""HiGHS through highspy: the embedded default. (highspy and ortools cannot live in one process.)

Requirement: none, it is a dependency. Returns: a SolverOutcome. Property: bounds hold up to HiGHS's tolerances.
Reference: Huangfu and Hall, Parallelizing the dual revised simplex method, 2018; https://highs.dev
"""

from __future__ import annotations

import math
import time
from typing import Any

import highspy
import numpy as np

from surebound.solvers.outcome import SolverOutcome, SolverStatus, consistent, read_status
from surebound.solvers.problem import Limits, MathProgram


def solve(problem: MathProgram, limits: Limits) -> SolverOutcome:
    """Solve in this process. HiGHS minimises (the sign is turned): then its options mean what they say."""
    highs = highspy.Highs()
    _configure(highs, limits)
    if highs.passModel(_model(problem)) == highspy.HighsStatus.kError:
        return SolverOutcome(SolverStatus.NUMERICAL, detail="HiGHS refused the model")
    stop = _Stop(limits, time.monotonic())
    if problem.binaries:
        highs.cbMipInterrupt += stop.check
    if highs.run() == highspy.HighsStatus.kError:
        return SolverOutcome(SolverStatus.NUMERICAL, detail="HiGHS stopped with an error")
    name = highs.getModelStatus().name
    status = stop.status if name in ("kInterrupt", "kHighsInterrupt") else read_status("highs", name)
    return consistent(_outcome(highs, problem, status, name, stop.upper), limits.feasibility)


class _Stop:
    """Interrupts a search that has already answered the question."""

    def __init__(self, limits: Limits, start: float) -> None:
        self._limits = limits
        self._start = start
        self.status = SolverStatus.UNKNOWN
        self.upper = math.inf  # the smallest upper bound of the maximum that was reported during the search

    def check(self, event: Any) -> None:
        # The maximum lies between minus the primal bound and minus the dual bound of the minimisation.
        upper, found = -event.data_out.mip_dual_bound, -event.data_out.mip_primal_bound
        limits = self._limits
        self.upper = min(self.upper, upper)  # NaN is not smaller
        if limits.prove_below is not None and upper < limits.prove_below:
            self.status = SolverStatus.BELOW
        elif limits.falsify_above is not None and limits.falsify_above < found < math.inf:
            self.status = SolverStatus.ABOVE
        elif time.monotonic() - self._start > limits.seconds:
            self.status = SolverStatus.TIME_LIMIT
        else:
            return
        event.interrupt()


def _configure(highs: Any, limits: Limits) -> None:
    options = {
        "output_flag": False,
        "threads": limits.threads,
        "random_seed": 0,
        "primal_feasibility_tolerance": limits.feasibility,
        "mip_feasibility_tolerance": limits.feasibility,
        "mip_rel_gap": 0.0,
    }
    if math.isfinite(limits.seconds):
        options["time_limit"] = max(limits.seconds, 0.0)
    for name, value in options.items():
        if highs.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise ValueError(f"HiGHS does not accept {name} = {value!r}")


def _model(problem: MathProgram) -> Any:
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = problem.matrix.shape
    lp.col_cost_, lp.offset_ = -problem.objective, -problem.offset
    lp.col_lower_, lp.col_upper_ = problem.lower, problem.upper
    lp.row_lower_, lp.row_upper_ = problem.row_lower, problem.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = problem.matrix.indptr
    lp.a_matrix_.index_ = problem.matrix.indices
    lp.a_matrix_.value_ = problem.matrix.data
    if problem.binaries:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(flag)] for flag in problem.integral]
    return lp


def _outcome(highs: Any, problem: MathProgram, status: SolverStatus, name: str, seen: float) -> SolverOutcome:
    info = highs.getInfo()
    has_point = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    solution = highs.getSolution()
    point = np.array(solution.col_value, dtype=np.float64) if has_point else None
    if problem.binaries:
        # A search that is stopped early leaves 0 in the info, which is no bound: only what was reported counts.
        bound, duals = -info.mip_dual_bound if status is SolverStatus.OPTIMAL else seen, None
    else:
        # Without a finished simplex the dual objective is no bound that we could argue for.
        bound = -info.objective_function_value if status is SolverStatus.OPTIMAL else math.inf
        duals = np.array(solution.row_dual, dtype=np.float64) if status is SolverStatus.OPTIMAL else None
    return SolverOutcome(status, problem.value(point), float(bound), point, duals, detail=name)
