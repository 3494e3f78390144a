"""The complete search by a MIP solver (Tjeng et al. 2019) and the linear program of Ehlers (2017).

requirement: a piecewise linear network; anything else is left open, with the reason in the finding
return:      bounds per class, or a candidate witness
property:    MIP complete (given time), LP not; both rest on the solver's tolerance: never float-sound
reference:   Gowal et al. 2018, section 4: MIP with a time limit, then the LP relaxation, then "attackable"
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import time
from typing import ClassVar

import numpy as np
from torch import Tensor

from surebound.errors import BoundError, InputError, UnsupportedOperatorError
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import SOLVER_FEASIBILITY, WITNESS_MARGIN
from surebound.region import project
from surebound.search.mip import Encoding, tightest_bounds
from surebound.search.question import Finding, Question
from surebound.search.stages.base import OneByOne
from surebound.search.tightening import tightened_bounds
from surebound.search.workspace import Workspace
from surebound.solvers import Limits, MathProgram, SolverOutcome, SolverStatus, find


@dataclasses.dataclass(frozen=True)
class _Programs(OneByOne):
    """What MIP and LP share: one encoding per box, one problem per case that is still open."""

    chunk: ClassVar[int] = 1
    seconds: float = 600.0
    solver: str = "highs"
    memory_bytes: int | None = 4 << 30
    crown: bool = True  # big-M constants from CROWN bounds, not only from intervals
    tighten: int = 0  # with CROWN: so many ReLUs get tighter bounds by linear programs (search/tightening.py)
    tighten_share: float = 0.1  # of the time, at most

    def __post_init__(self) -> None:
        if self.tighten < 0 or not 0 <= self.tighten_share <= 1:
            raise InputError(f"{self}: tighten must be 0 or more ReLUs, tighten_share a share of the time, 0 to 1")

    def check(self) -> None:
        find(self.solver)

    def answer(self, question: Question, workspace: Workspace) -> Finding:
        clock = _Clock(min(self.seconds, question.seconds))
        margins, found = question.margins.clone(), Finding()
        for number, members in question.cases.groups():
            group = question[members]
            try:
                encoder = workspace.encoder(group.cases.lower[number : number + 1])
                encoding = encoder.encode(self._bounds(group, number, workspace, encoder.program, clock))
            except (UnsupportedOperatorError, BoundError) as error:
                return Finding(detail=str(error).splitlines()[0])
            found = self._search(_Group(group, number, encoding, workspace), clock)
            if found.margins is not None:
                margins[members] = found.margins
            if found.witness is not None or found.timed_out:
                break
        return dataclasses.replace(found, margins=margins)

    def _bounds(
        self, group: Question, number: int, workspace: Workspace, program: Program, clock: _Clock
    ) -> dict[str, Interval]:
        """Bound every value in stages: intervals, CROWN, linear programs for the few ReLUs that matter."""
        start = group.cases.interval(number)
        bounds = tightest_bounds(program, start, crown=self.crown)
        if not self.crown or not self.tighten:
            return bounds
        budget = _Clock(self.tighten_share * clock.left)

        def solve(problem: MathProgram) -> SolverOutcome:
            limits = Limits(SOLVER_FEASIBILITY, budget.left, self.memory_bytes)
            return workspace.solver(self.solver).solve(problem, limits)

        rows = group.cases.c[group.cases.valid]
        return tightened_bounds(program, start, bounds, rows, self.tighten, solve, lambda: budget.left > 0)

    @abc.abstractmethod
    def _search(self, group: _Group, clock: _Clock) -> Finding:
        """Decide the cases of one box."""

    def _solve(
        self, workspace: Workspace, problem: MathProgram, clock: _Clock, above: float | None = None
    ) -> SolverOutcome:
        limits = Limits(SOLVER_FEASIBILITY, clock.left, self.memory_bytes, prove_below=0.0, falsify_above=above)
        return workspace.solver(self.solver).solve(problem, limits)


@dataclasses.dataclass(frozen=True)
class MixedInteger(_Programs):
    """The MIP of Tjeng et al.: one problem per open case, the most suspicious first.

    One problem for the largest margin of all classes costs 3 to 5 times as much once bounds have removed the
    classes that they prove (benchmarks/bench_verify.py): its binaries weaken the relaxation.
    """

    name: ClassVar[str] = "mip"

    def _search(self, group: _Group, clock: _Clock) -> Finding:
        margins, details = group.question.margins.clone(), list[str]()
        for k in group.suspicious_first():
            if clock.left <= 0:
                return Finding(
                    margins,
                    timed_out=True,
                    detail="; ".join([*details, f"case {group.name(k)}: no time left"]),
                )
            problem = group.problem(k)
            outcome = self._solve(group.workspace, problem, clock, above=WITNESS_MARGIN)
            witness = group.witness(outcome)
            if witness is None and outcome.status is SolverStatus.ABOVE:
                # The incumbent did not survive its re-run (tolerance): search on to the optimum.
                outcome = self._solve(group.workspace, problem, clock)
                witness = group.witness(outcome)
            if witness is not None:
                return Finding(margins, witness=witness)
            margins[k] = min(float(margins[k]), group.believed(outcome, k))
            if not margins[k] <= 0:
                details.append(f"case {group.name(k)}: {outcome.status.value} {outcome.detail}".strip())
                if outcome.status is SolverStatus.TIME_LIMIT:
                    return Finding(margins, timed_out=True, detail="; ".join(details))
        return Finding(margins, detail="; ".join(details))


@dataclasses.dataclass(frozen=True)
class LinearRelaxation(_Programs):
    """The LP of Ehlers: every ReLU replaced by its triangle."""

    name: ClassVar[str] = "lp"

    def _search(self, group: _Group, clock: _Clock) -> Finding:
        margins = group.question.margins.clone()
        for k in group.suspicious_first():
            if clock.left <= 0:
                return Finding(margins, timed_out=True, detail=f"case {group.name(k)}: no time left")
            outcome = self._solve(group.workspace, group.problem(k).relaxed(), clock)
            witness = group.witness(outcome)
            if witness is not None:
                return Finding(margins, witness=witness)
            margins[k] = min(float(margins[k]), group.believed(outcome, k))
            if not margins[k] <= 0:  # one open case leaves the example open
                timed_out = outcome.status is SolverStatus.TIME_LIMIT
                detail = f"case {group.name(k)}: {outcome.status.value} {outcome.detail}".strip()
                return Finding(margins, timed_out=timed_out, detail=detail)
        return Finding(margins)


class _Clock:
    """Counts down one example's time."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic()) if math.isfinite(self._end) else math.inf


@dataclasses.dataclass(frozen=True, eq=False)
class _Group:
    """The cases of one box and the network encoded over it."""

    question: Question
    number: int
    encoding: Encoding
    workspace: Workspace

    @functools.cached_property
    def here(self) -> Tensor:
        """The smallest rows (N,) in the middle of the box: no maximum over it is smaller."""
        box = self.question.cases.interval(self.number)
        z = self.workspace.logits(project(box.lower / 2 + box.upper / 2, box.lower, box.upper))
        return self.question.cases.smallest(z.double())

    def suspicious_first(self) -> list[int]:
        """Return the open cases, the largest bound first."""
        margins = self.question.margins.nan_to_num(math.inf)
        rows = (~(self.question.margins <= 0)).nonzero().squeeze(1).tolist()
        return sorted(rows, key=lambda k: -float(margins[k]))

    def name(self, k: int) -> int:
        """Return what a case is called."""
        return int(self.question.numbers[k])

    def problem(self, k: int) -> MathProgram:
        """Return the problem whose maximum is that of the smallest row of a case."""
        cases = self.question.cases
        valid = cases.valid[k]
        c, d = (v[valid].double().numpy() for v in (cases.c[k], cases.d[k]))
        return self.encoding.problem(c[0], float(d[0])) if len(d) == 1 else self.encoding.smallest(c, d)

    def believed(self, outcome: SolverOutcome, k: int) -> float:
        """Return the solver's bound, unless the network itself already contradicts it."""
        floor = float(self.here[k])
        return outcome.bound if outcome.bound >= floor - WITNESS_MARGIN * max(1.0, abs(floor)) else math.inf

    def witness(self, outcome: SolverOutcome) -> Tensor | None:
        """Return the solver's point, if the network really fails there."""
        if outcome.point is None or not np.isfinite(outcome.point).all() or not outcome.objective > 0:
            return None
        box = self.question.cases.lower[self.number]
        return self.question.confirm(self.encoding.input_of(outcome.point, box).unsqueeze(0), self.number)
