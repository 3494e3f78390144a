"""Answer a query: sat with a checked assignment, unsat with a proof for every execution asked about, or neither.

requirement: linear constraints over networks that ``graph.onnx_import`` reads
return:      Answer
property:    sound: unsat rests on bounds with outward rounding, for ``float32`` queries on bounds that hold of every
             float32 execution; sat on an assignment that onnxruntime and our evaluation both confirm
reference:   the VNN-LIB 2.0 standard (verdicts); Bunel et al. 2020, Wang et al. 2021 (search)
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.exchange.ascent import climb, starts
from surebound.exchange.boxes import Rows, split_boxes
from surebound.exchange.cases import Case, cases, coefficients, ends, without
from surebound.exchange.domain import as_bound
from surebound.exchange.problem import Problem, build
from surebound.exchange.query import Atom, Query, atoms
from surebound.exchange.text import read_query
from surebound.exchange.witness import Assignment, Judge, inner_box
from surebound.graph.onnx_file import Model, read_model
from surebound.interval import Interval
from surebound.propagate.interval import propagate
from surebound.propagate.margins import worst_margins
from surebound.region import Box
from surebound.spec import LinearSpec

#: Networks of at most this many inputs are decided by splitting the input box, others by splitting on ReLUs.
FEW_INPUTS = 16


class Verdict(enum.Enum):
    """What can be said of a query, in the standard's words."""

    SAT = "sat"
    UNSAT = "unsat"
    UNKNOWN = "unknown"
    TIMED_OUT = "timed-out"


@dataclass(frozen=True, eq=False)
class Answer:
    """A verdict, the assignment if it is sat (by variable, in the order of declaration), and what settled it."""

    verdict: Verdict
    assignment: Assignment = field(default_factory=dict)
    stage: str = ""
    detail: str = ""
    seconds: float = 0.0


def decide(
    query: Query | str | Path,
    networks: Mapping[str, Model | str | Path],
    timeout: float = math.inf,
    *,
    seed: int = 0,
) -> Answer:
    """Decide a query about networks, given by the names that the query has for them; either may be a file's path."""
    began = time.monotonic()
    asked = query if isinstance(query, Query) else read_query(query)
    models = {name: each if isinstance(each, Model) else read_model(each) for name, each in networks.items()}
    run = _Run(build(asked, models), began + timeout, seed)
    verdict, stage = run.decide()
    return Answer(verdict, run.assignment, stage, run.detail, time.monotonic() - began)


class _Group:
    """The cases that share a box."""

    def __init__(self, problem: Problem, members: Sequence[Case]) -> None:
        self.cases = list(members)
        lower, upper = ends(members[0], problem)
        self.box = problem.box(lower, upper)
        shape = self.box.shape
        self.inner = tuple(torch.from_numpy(end).reshape(shape) for end in inner_box(lower, upper))


class _Run:
    """One query on its way to a verdict."""

    def __init__(self, problem: Problem, deadline: float, seed: int) -> None:
        self.problem, self.deadline, self.seed = problem, deadline, seed
        self.judge = Judge(problem)
        self.assignment: Assignment = {}
        self.detail = ""

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def candidate(self, inner: tuple[Tensor, ...]) -> Callable[[Tensor], bool]:
        """A check of points (1, *input): moved into the inner box, run, remembered if they satisfy the query."""

        def check(point: Tensor) -> bool:
            x = torch.minimum(torch.maximum(point.float(), inner[0]), inner[1])
            self.assignment = self.judge(x) or {}
            return bool(self.assignment)

        return check

    def decide(self) -> tuple[Verdict, str]:
        problem = self.problem
        if any(low > high for low, high in zip(problem.lower, problem.upper, strict=True)):
            return Verdict.UNSAT, "input bounds"
        left = without(problem.formula, ())
        if left is not None:
            try:
                left = without(left, self._refuted(sorted_atoms(left, problem)))
            except (BoundError, UnsupportedOperatorError) as error:
                self.detail = str(error).splitlines()[0]
        if left is None:
            return Verdict.UNSAT, "bounds"
        grouped: dict[object, list[Case]] = {}
        for case in cases(left, problem):
            grouped.setdefault(case.box, []).append(case)
        groups = [_Group(problem, members) for members in grouped.values()]
        if self._attack(groups):
            return Verdict.SAT, "attack"
        return self._search(groups)

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
                self.problem.network,
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

    def _search(self, groups: Sequence[_Group]) -> tuple[Verdict, str]:
        few = len(self.problem.lower) <= FEW_INPUTS
        if few:
            found, stage = self._split_boxes(groups), "input splitting"
        else:
            found, stage = self._split_signs(groups), "branch and bound"
        words = {"unsat": Verdict.UNSAT, "sat": Verdict.SAT, "timeout": Verdict.TIMED_OUT}
        return words.get(found, Verdict.UNKNOWN), stage

    def _split_boxes(self, groups: Sequence[_Group]) -> str:
        pairs = [(group, case) for group in groups for case in group.cases]
        inner = (
            torch.cat([g.inner[0] for g, _ in pairs]).amin(0, keepdim=True),
            torch.cat([g.inner[1] for g, _ in pairs]).amax(0, keepdim=True),
        )
        return split_boxes(
            self.problem.network,
            torch.cat([group.box.lower for group, _ in pairs]),
            torch.cat([group.box.upper for group, _ in pairs]),
            self.rows([case for _, case in pairs]),
            self.problem.soundness,
            self.deadline,
            self.candidate(inner),
        )

    def _split_signs(self, groups: Sequence[_Group]) -> str:
        """Group by group; a group that stays open leaves the query open, unless a later one is sat."""
        from surebound.exchange.rows import decide_rows  # brings solvers, which most queries do not need

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
            )
            if found == "sat":
                return found
            if found != "unsat":
                worst, self.detail = found, detail or self.detail
        return worst


def sorted_atoms(formula: object, problem: Problem) -> list[Atom]:
    """The distinct atoms that are not just bounds of inputs."""
    found = dict.fromkeys(atoms(formula))  # type: ignore[arg-type]
    return [atom for atom in found if atom.terms and as_bound(atom, problem.inputs) is None]
