"""What a solver answered, and the one table that reads solvers' statuses: anything unclear is UNKNOWN."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping

from surebound.solvers.problem import Vector


class SolverStatus(enum.Enum):
    """Why a solver stopped. Only the ``trusted`` ones come with a bound that means something."""

    OPTIMAL = "optimal"
    BELOW = "dual bound below the limit"
    ABOVE = "incumbent above the limit"
    TIME_LIMIT = "time limit"
    MEMORY_LIMIT = "memory limit"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    NUMERICAL = "numerical trouble"
    CRASHED = "the solver's process crashed"
    KILLED = "the solver's process was killed"
    UNKNOWN = "unknown"

    @property
    def trusted(self) -> bool:
        """Whether the dual bound may be used (up to the solver's tolerance)."""
        return self in _TRUSTED


_TRUSTED = frozenset({SolverStatus.OPTIMAL, SolverStatus.BELOW, SolverStatus.ABOVE, SolverStatus.TIME_LIMIT})


@dataclasses.dataclass(frozen=True, eq=False)
class SolverOutcome:
    """A solver's answer to one maximisation.

    ``objective`` is the value of the incumbent ``point`` (minus infinity: none was found); ``dual_bound`` an
    upper bound of the maximum (infinity: none). ``row_duals`` are the multipliers of a solved linear program.
    """

    status: SolverStatus
    objective: float = -math.inf
    dual_bound: float = math.inf
    point: Vector | None = None  # (N,)
    row_duals: Vector | None = None  # (M,)
    detail: str = ""

    @property
    def bound(self) -> float:
        """The dual bound if the status allows to use it, else infinity; NaN is no bound either."""
        return self.dual_bound if self.status.trusted and not math.isnan(self.dual_bound) else math.inf


_STATUS_TABLE: Mapping[str, Mapping[str, SolverStatus]] = {
    "highs": {
        "kOptimal": SolverStatus.OPTIMAL,
        "kObjectiveTarget": SolverStatus.ABOVE,
        "kInfeasible": SolverStatus.INFEASIBLE,
        "kUnbounded": SolverStatus.UNBOUNDED,
        "kTimeLimit": SolverStatus.TIME_LIMIT,
        "kMemoryLimit": SolverStatus.MEMORY_LIMIT,
        "kSolveError": SolverStatus.NUMERICAL,
        "kPresolveError": SolverStatus.NUMERICAL,
        "kPostsolveError": SolverStatus.NUMERICAL,
    },
    "scip": {
        "optimal": SolverStatus.OPTIMAL,
        "primallimit": SolverStatus.ABOVE,
        "duallimit": SolverStatus.BELOW,
        "infeasible": SolverStatus.INFEASIBLE,
        "unbounded": SolverStatus.UNBOUNDED,
        "timelimit": SolverStatus.TIME_LIMIT,
        "memlimit": SolverStatus.MEMORY_LIMIT,
    },
    "gurobi": {
        "OPTIMAL": SolverStatus.OPTIMAL,
        "USER_OBJ_LIMIT": SolverStatus.ABOVE,
        "INFEASIBLE": SolverStatus.INFEASIBLE,
        "UNBOUNDED": SolverStatus.UNBOUNDED,
        "TIME_LIMIT": SolverStatus.TIME_LIMIT,
        "MEM_LIMIT": SolverStatus.MEMORY_LIMIT,
        "NUMERIC": SolverStatus.NUMERICAL,
        "SUBOPTIMAL": SolverStatus.NUMERICAL,
    },
}


def read_status(solver: str, name: str) -> SolverStatus:
    """Return the meaning of a solver's own status; whatever the table does not name is UNKNOWN.

    >>> read_status("highs", "kOptimal").name, read_status("highs", "kSomethingNew").name
    ('OPTIMAL', 'UNKNOWN')
    """
    return _STATUS_TABLE[solver].get(name, SolverStatus.UNKNOWN)


def consistent(outcome: SolverOutcome, feasibility: float) -> SolverOutcome:
    """Return the outcome, or NUMERICAL if it contradicts itself.

    An optimum without a solution, or a bound clearly below the solution that was found, is no answer.
    """
    if outcome.status is SolverStatus.OPTIMAL and outcome.point is None:
        return SolverOutcome(SolverStatus.NUMERICAL, detail=f"{outcome.detail}, but without a solution")
    slack = 1e3 * feasibility * max(1.0, abs(outcome.objective))
    if outcome.point is not None and outcome.bound < outcome.objective - slack:
        return SolverOutcome(SolverStatus.NUMERICAL, detail=f"{outcome.detail}, but its bound is below its solution")
    return outcome
