"""The complete search by a MIP solver (Tjeng et al. 2019) and the linear program of Ehlers (2017).

requirement: a piecewise linear network; anything else is left open, with the reason in the finding
return:      bounds per class, or a candidate witness
property:    MIP complete (given time), LP not; both rest on the solver's tolerance: never float-sound
reference:   Gowal et al. 2018, section 4: MIP with a time limit, then the LP relaxation, then "attackable"
"""

from __future__ import annotations

import abc
import dataclasses
import math
import time
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from surebound.errors import BoundError, InputError, UnsupportedOperatorError
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import SOLVER_FEASIBILITY, WITNESS_MARGIN, Soundness
from surebound.search.mip import Encoding, tightest_bounds
from surebound.search.query import Finding, Query
from surebound.search.stages.base import Stage
from surebound.search.tightening import tightened_bounds
from surebound.search.workspace import Workspace
from surebound.solvers import Limits, Outcome, Problem, SolverStatus, find


@dataclasses.dataclass(frozen=True)
class _Programs(Stage):
    """What MIP and LP share: one encoding per example, one problem per class that is still open."""

    chunk: ClassVar[int] = 1
    seconds: float = 600.0
    solver: str = "highs"
    memory_bytes: int | None = 4 << 30
    crown: bool = True  # big-M constants from CROWN bounds, not only from intervals
    tighten: int = 0  # with CROWN: so many ReLUs get tighter bounds by linear programs (search/tightening.py)
    tighten_share: float = 0.1  # of the time, at most

    def __post_init__(self) -> None:
        if self.tighten < 0 or not 0 <= self.tighten_share <= 1:
            raise InputError(
                f"{self}: tighten must be 0 or more ReLUs, tighten_share a share of the time, 0 to 1"
            )

    def check(self) -> None:
        find(self.solver)

    def decide(self, query: Query, workspace: Workspace) -> list[Finding]:
        return [self._one(query.take(torch.tensor([i])), workspace) for i in range(len(query))]

    def _one(self, query: Query, workspace: Workspace) -> Finding:
        clock = _Clock(min(self.seconds, query.seconds))
        try:
            encoder = workspace.encoder(query.region.reference)
            start = query.region.interval(Soundness.DEPLOYED)
            encoding = encoder.encode(self._bounds(query, workspace, encoder.program, start, clock))
        except (UnsupportedOperatorError, BoundError) as error:
            return Finding(detail=str(error).splitlines()[0])
        return self._search(query, workspace, encoding, clock)

    def _bounds(
        self, query: Query, workspace: Workspace, program: Program, start: Interval, clock: _Clock
    ) -> dict[str, Interval]:
        """Bounds in stages: intervals, CROWN, linear programs for the few ReLUs that matter."""
        bounds = tightest_bounds(program, start, crown=self.crown)
        if not self.crown or not self.tighten:
            return bounds
        budget = _Clock(self.tighten_share * clock.left)

        def solve(problem: Problem) -> Outcome:
            limits = Limits(SOLVER_FEASIBILITY, budget.left, self.memory_bytes)
            return workspace.solver(self.solver).solve(problem, limits)

        rows = query.spec.c[0, query.open_rows[0]]
        return tightened_bounds(program, start, bounds, rows, self.tighten, solve, lambda: budget.left > 0)

    @abc.abstractmethod
    def _search(self, query: Query, workspace: Workspace, encoding: Encoding, clock: _Clock) -> Finding:
        """Decide one example."""

    def _solve(
        self, workspace: Workspace, problem: Problem, clock: _Clock, above: float | None = None
    ) -> Outcome:
        limits = Limits(
            SOLVER_FEASIBILITY, clock.left, self.memory_bytes, prove_below=0.0, falsify_above=above
        )
        return workspace.solver(self.solver).solve(problem, limits)


@dataclasses.dataclass(frozen=True)
class MixedInteger(_Programs):
    """The MIP of Tjeng et al.: one problem per open class, the most suspicious first.

    One problem for the largest margin of all classes costs 3 to 5 times as much once bounds have removed the
    classes that they prove (benchmarks/bench_verify.py): its binaries weaken the relaxation.
    """

    name: ClassVar[str] = "mip"

    def _search(self, query: Query, workspace: Workspace, encoding: Encoding, clock: _Clock) -> Finding:
        margins, details = query.margins[0].clone(), list[str]()
        floor = _margins_here(query, workspace)
        for k in _suspicious_first(query):
            if clock.left <= 0:
                return Finding(
                    margins, timed_out=True, detail="; ".join([*details, f"class {k}: no time left"])
                )
            problem = encoding.problem(_row(query, k), 0.0)
            outcome = self._solve(workspace, problem, clock, above=WITNESS_MARGIN)
            witness = _witness(query, workspace, encoding, outcome)
            if witness is None and outcome.status is SolverStatus.ABOVE:
                # The incumbent did not survive its re-run (tolerance): search on to the optimum.
                outcome = self._solve(workspace, problem, clock)
                witness = _witness(query, workspace, encoding, outcome)
            if witness is not None:
                return Finding(margins, witness=witness)
            margins[k] = min(float(margins[k]), _bound(outcome, floor, k))
            if not margins[k] <= 0:
                details.append(f"class {k}: {outcome.status.value} {outcome.detail}".strip())
                if outcome.status is SolverStatus.TIME_LIMIT:
                    return Finding(margins, timed_out=True, detail="; ".join(details))
        return Finding(margins, detail="; ".join(details))


@dataclasses.dataclass(frozen=True)
class LinearRelaxation(_Programs):
    """The LP of Ehlers: every ReLU replaced by its triangle."""

    name: ClassVar[str] = "lp"

    def _search(self, query: Query, workspace: Workspace, encoding: Encoding, clock: _Clock) -> Finding:
        margins, timed_out = query.margins[0].clone(), False
        floor = _margins_here(query, workspace)
        for k in _suspicious_first(query):
            if clock.left <= 0:
                return Finding(margins, timed_out=True, detail=f"class {k}: no time left")
            outcome = self._solve(workspace, encoding.problem(_row(query, k), 0.0).relaxed(), clock)
            witness = _witness(query, workspace, encoding, outcome)
            if witness is not None:
                return Finding(margins, witness=witness)
            margins[k] = min(float(margins[k]), _bound(outcome, floor, k))
            if not margins[k] <= 0:  # one open class leaves the example open
                timed_out = outcome.status is SolverStatus.TIME_LIMIT
                detail = f"class {k}: {outcome.status.value} {outcome.detail}".strip()
                return Finding(margins, timed_out=timed_out, detail=detail)
        return Finding(margins)


class _Clock:
    """Counts down one example's time."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic()) if math.isfinite(self._end) else math.inf


def _suspicious_first(query: Query) -> list[int]:
    """Open classes of a query of one example, the largest bound first."""
    margins = query.margins[0].nan_to_num(math.inf)
    rows = query.open_rows[0].nonzero().squeeze(1).tolist()
    return sorted(rows, key=lambda k: -float(margins[k]))


def _row(query: Query, k: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    row = np.zeros(query.margins.shape[1])
    row[k] += 1.0
    row[int(query.labels[0])] -= 1.0
    return row


def _margins_here(query: Query, workspace: Workspace) -> Tensor:
    """Margins (K,) of the example itself: no maximum over the region is smaller."""
    logits = workspace.logits(query.region.reference)[0].double()
    return logits - logits[query.labels[0]]


def _bound(outcome: Outcome, floor: Tensor, k: int) -> float:
    """The solver's bound, unless the network itself already contradicts it."""
    believable = outcome.bound >= float(floor[k]) - WITNESS_MARGIN * max(1.0, abs(float(floor[k])))
    return outcome.bound if believable else math.inf


def _witness(query: Query, workspace: Workspace, encoding: Encoding, outcome: Outcome) -> Tensor | None:
    """The solver's point, if the network really fails there."""
    if outcome.point is None or not np.isfinite(outcome.point).all() or not outcome.objective > 0:
        return None
    candidate = encoding.input_of(outcome.point, query.region.reference[0])
    return workspace.confirmed(query.region, query.labels, candidate)
