"""Search for an input at which a formula holds, or for a proof that there is none.

requirement: linear constraints; bounds for every operator of the network
return:      Decision; the caller's judge has the point where one was found
property:    sound: "unsat" rests on bounds with outward rounding, unless it says that it is within a solver's tolerance
reference:   Bunel et al. 2020, Wang et al. 2021 (branch and bound); Tjeng et al. 2019 (MIP)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from surebound.bounds.interval import propagate
from surebound.bounds.margins import worst_margins
from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.interval import Interval
from surebound.region import Box
from surebound.search.formulas.cases import Case, cases, coefficients, ends, without
from surebound.search.formulas.problem import Problem, inner_box
from surebound.search.splitting.ascent import climb, starts
from surebound.search.splitting.boxes import Rows, split_boxes
from surebound.search.splitting.rule import SPLITS, complete, schedule, ways
from surebound.spec import LinearSpec
from surebound.spec.formula import Atom, Formula, as_bound, atoms

#: The stages of a search, in their order.
STAGES = ("bounds", "attack", "branch-and-bound", "mip")

#: A point (1, *input) of float32 numbers: does the formula hold there, by whatever the caller trusts?
Judge = Callable[[Tensor], bool]


@dataclass(frozen=True)
class Decision:
    """ "sat", "unsat", "unknown" or "timeout", what settled it, and whether it rests on a solver's tolerance."""

    found: str
    stage: str
    detail: str = ""
    within_tolerance: bool = False


class _Group:
    """The cases that share a box."""

    def __init__(self, problem: Problem, members: Sequence[Case]) -> None:
        self.cases = list(members)
        lower, upper = ends(members[0], problem)
        self.box = problem.box(lower, upper)
        shape = self.box.shape
        self.inner = tuple(torch.from_numpy(end).reshape(shape) for end in inner_box(lower, upper))


class Search:
    """One formula on its way to a decision."""

    def __init__(
        self,
        problem: Problem,
        judge: Judge,
        deadline: float,
        seed: int = 0,
        stages: Sequence[str] = STAGES,
    ) -> None:
        self.problem, self.judge, self.deadline, self.seed = problem, judge, deadline, seed
        self.stages = stages
        self.detail = ""

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def candidate(self, inner: tuple[Tensor, ...]) -> Callable[[Tensor], bool]:
        """A check of points (1, *input): moved into the inner box and judged there."""

        def check(point: Tensor) -> bool:
            return self.judge(torch.minimum(torch.maximum(point.float(), inner[0]), inner[1]))

        return check

    def decide(self) -> Decision:
        """Stage by stage, until one settles it."""
        problem = self.problem
        if problem.empty:
            return Decision("unsat", "input bounds")
        left = without(problem.formula, ())
        if left is not None and "bounds" in self.stages:
            try:
                left = without(left, self._refuted(sorted_atoms(left, problem)))
            except (BoundError, UnsupportedOperatorError) as error:
                self.detail = str(error).splitlines()[0]
        if left is None:
            return Decision("unsat", "bounds")
        grouped: dict[object, list[Case]] = {}
        for case in cases(left, problem):
            grouped.setdefault(case.box, []).append(case)
        if not grouped:
            return Decision("unsat", "bounds")
        groups = [_Group(problem, members) for members in grouped.values()]
        if "attack" in self.stages and self._attack(groups):
            return Decision("sat", "attack")
        return self._searched(groups)

    def _searched(self, groups: Sequence[_Group]) -> Decision:
        """Complete searches; what the first leaves open goes to the second."""
        found, stage = "unknown", self.stages[-1]
        for stage, most in self._splits():
            found = (
                self._split_boxes(groups, most)
                if stage == SPLITS[0]
                else self._split_signs(groups, int(most))
            )
            # Where ReLU splitting is complete, what it leaves open is within rounding: no boxes settle that.
            settled = stage == SPLITS[1] and found == "unknown" and complete(self.problem.network.program)
            if found not in ("given up", "unknown") or settled:
                break
        if found in ("unknown", "given up") and "mip" in self.stages:
            return self._by_mip(groups)
        return Decision(found, stage, "" if found in ("sat", "unsat") else self.detail)

    def _refuted(self, rows: list[Atom]) -> set[Atom]:
        """The atoms that cannot hold anywhere in the query's box."""
        if not rows:
            return set()
        box = self.problem.box(self.problem.lower, self.problem.upper)
        gone = self._refuted_exactly(rows, box)
        rows = [row for row in rows if row not in gone]
        return gone | self._refuted_linearly(rows, box) if rows else gone

    def _refuted_exactly(self, rows: list[Atom], box: Interval) -> set[Atom]:
        """By interval bounds of the outputs, in exact arithmetic: nothing is lost where nothing is rounded."""
        with torch.no_grad():
            found = propagate(self.problem.network.program, box, self.problem.soundness)
        ends = [end[0].double().tolist() for end in (found.lower, found.upper)]
        gone = set()
        for row in rows:
            places = [(self.problem.columns[element], value) for element, value in row.terms]
            used = [ends[value > 0][column] for column, value in places]
            if all(math.isfinite(end) for end in used):
                pairs = zip(places, used, strict=True)
                most = row.constant + sum(value * Fraction(end) for (_, value), end in pairs)
                if most < 0 or (row.strict and most <= 0):
                    gone.add(row)
        return gone

    def _refuted_linearly(self, rows: list[Atom], box: Interval) -> set[Atom]:
        """By upper bounds of the rows themselves."""
        region, program = Box(box.lower, box.upper), self.problem.network.program
        gone: set[Atom] = set()
        for method in ("interval", "crown"):  # with the last layers merged into the rows, the cheap one first
            left = [row for row in rows if row not in gone]
            if not left:
                break
            spec = LinearSpec(*coefficients(left, self.problem.columns))
            with torch.no_grad():
                upper = worst_margins(
                    program, region, spec=spec, method=method, soundness=self.problem.soundness
                )[0]
            strict = torch.tensor([row.strict for row in left])
            dead = (upper < 0) | (strict & (upper <= 0))
            gone |= {row for row, refuted in zip(left, dead.tolist(), strict=True) if refuted}
        return gone

    def _attack(self, groups: Sequence[_Group]) -> bool:
        """A few hundred points, spread over all cases; a case without rows holds everywhere in its box."""
        pairs = [(group, case) for group in groups for case in group.cases][:256]
        restarts = max(1, 64 // max(1, len(pairs)))
        for first in range(0, len(pairs), 64):
            part = pairs[first : first + 64]
            rows = self.rows([case for _, case in part])
            low = torch.cat([group.inner[0] for group, _ in part])
            high = torch.cat([group.inner[1] for group, _ in part])
            again = [restarts] + [1] * (low.dim() - 1)
            points = climb(
                self.problem.network.program,
                starts(low, high, self.seed, restarts),
                low.repeat(*again),
                high.repeat(*again),
                rows.c.repeat(restarts, 1, 1),
                rows.d.repeat(restarts, 1),
                self.deadline,
            )
            everywhere = (torch.full_like(low[:1], -math.inf), torch.full_like(low[:1], math.inf))
            for tried, point in enumerate(points):
                if self.candidate(everywhere)(point):
                    return True
                if tried >= 64 or self.late:
                    break
        return False

    def rows(self, given: Sequence[Case]) -> Rows:
        """The rows of some cases, padded to equally many."""
        widest = max(1, *(len(case.rows) for case in given))
        outputs = max(1, len(self.problem.columns))
        c = torch.zeros(len(given), widest, outputs, dtype=torch.float64)
        if not self.problem.columns:
            size = self.problem.network.graph.by_name[self.problem.network.graph.output].shape
            c = torch.zeros(len(given), widest, int((size or (1, 1))[1] or 1), dtype=torch.float64)
        d = torch.full((len(given), widest), math.inf, dtype=torch.float64)
        strict = torch.zeros(len(given), widest, dtype=torch.bool)
        valid = torch.zeros(len(given), widest, dtype=torch.bool)
        for i, case in enumerate(given):
            n = len(case.rows)
            if n:
                c[i, :n], d[i, :n] = coefficients(case.rows, self.problem.columns)
                strict[i, :n], valid[i, :n] = torch.tensor([row.strict for row in case.rows]), True
        return Rows(c, d, strict, valid)

    def _splits(self) -> list[tuple[str, float]]:
        """Ways to split and how far to go; naming one of them chooses it."""
        if "branch-and-bound" not in self.stages:
            return schedule(tuple(way for way in SPLITS if way in self.stages))
        box = self.problem.box(self.problem.lower, self.problem.upper)
        return ways(self.problem.network.program, box, self.problem.soundness)

    def _split_boxes(self, groups: Sequence[_Group], most: float) -> str:
        pairs = [(group, case) for group in groups for case in group.cases]
        inner = (
            torch.cat([g.inner[0] for g, _ in pairs]).amin(0, keepdim=True),
            torch.cat([g.inner[1] for g, _ in pairs]).amax(0, keepdim=True),
        )
        return split_boxes(
            self.problem.network.program,
            torch.cat([group.box.lower for group, _ in pairs]),
            torch.cat([group.box.upper for group, _ in pairs]),
            self.rows([case for _, case in pairs]),
            self.problem.soundness,
            self.deadline,
            self.candidate(inner),
            most,
        )

    def _split_signs(self, groups: Sequence[_Group], most: int) -> str:
        """Group by group; a group that stays open leaves the query open, unless a later one is sat."""
        from surebound.search.formulas.rows import (
            decide_rows,  # brings solvers, which most queries do not need
        )

        worst = "unsat"
        for group in groups:
            left = self.deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            found, detail = decide_rows(
                self.problem,
                Interval(group.box.lower, group.box.upper),
                self.rows(group.cases),
                self.deadline,
                self.candidate(group.inner),
                most,
            )
            if found == "sat":
                return found
            if found != "unsat":  # what rounding keeps open stays open, however long one searches
                worst = found if worst != "unknown" else worst
                self.detail = detail or self.detail
        return worst

    def _by_mip(self, groups: Sequence[_Group]) -> Decision:
        """A solver's answer: a point is judged like any other, a proof is one over the reals within its tolerance."""
        from surebound.search.formulas.integer import decide_by_mip

        worst = Decision("unsat", "mip", "within the solver's tolerance", within_tolerance=True)
        for group in groups:
            found, detail = decide_by_mip(
                self.problem, group.box, self.rows(group.cases), self.deadline, self.candidate(group.inner)
            )
            if found == "sat":
                return Decision("sat", "mip")
            if found != "unsat":
                worst = Decision(found, "mip", detail or self.detail)
        return worst


def sorted_atoms(formula: Formula, problem: Problem) -> list[Atom]:
    """The distinct atoms that are not just bounds of inputs."""
    found = dict.fromkeys(atoms(formula))
    return [atom for atom in found if atom.terms and as_bound(atom, problem.inputs) is None]
