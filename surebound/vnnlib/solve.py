"""Answer a query: sat with a checked assignment, unsat with a proof for every execution asked about, or neither.

requirement: linear constraints over networks that ``graph.onnx_import`` reads
return:      Answer
property:    sound: unsat rests on bounds with outward rounding, for ``float32`` queries on bounds that hold of every
             float32 execution; sat on an assignment that onnxruntime and our evaluation both confirm
reference:   the VNN-LIB 2.0 standard (verdicts); Bunel et al. 2020, Wang et al. 2021 (search)
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from surebound.errors import DataDependentError
from surebound.flags import uncollected
from surebound.graph.onnx.file import Model, read_model
from surebound.numerics import Soundness
from surebound.search.formula import STAGES, Certify, decide_formula
from surebound.search.problem import Problem
from surebound.verdict import Status
from surebound.vnnlib.positions import Positions
from surebound.vnnlib.problem import QueryProblem, build
from surebound.vnnlib.query import Query
from surebound.vnnlib.text import read_query
from surebound.vnnlib.witness import Assignment, Judge

#: The standard's words for verdicts.
WORDS = {Status.FALSIFIED: "sat", Status.ROBUST: "unsat", Status.TIMEOUT: "timed-out"}


@dataclass(frozen=True, eq=False)
class Answer:
    """A status, the assignment if it is FALSIFIED (by variable, in the order of declaration), and what settled it.

    FALSIFIED is the standard's sat: the query describes what must not happen, and the assignment makes it happen.
    """

    status: Status
    assignment: Assignment = field(default_factory=dict)
    stage: str = ""
    detail: str = ""
    seconds: float = 0.0
    float_sound: bool = False  # does it hold for every float32 execution?
    notes: tuple[str, ...] = ()  # what to know about how the query was read

    @property
    def word(self) -> str:
        """The status in the standard's words: sat, unsat, unknown or timed-out."""
        return WORDS.get(self.status, "unknown")


def decide(
    query: Query | str | Path,
    networks: Mapping[str, Model | str | Path],
    timeout: float = math.inf,
    *,
    seed: int = 0,
    tolerance: bool = False,
    certificates: str | Path | None = None,
    name: str = "query",
) -> Answer:
    """Decide a query about networks, given by the names that the query has for them; either may be a file's path.

    ``tolerance``: let what a MIP solver proves within its tolerance count as unsat, for queries about reals.
    ``certificates``: a directory for the certificate NAME.cert of an unsat, which ``surebound check`` confirms;
    none is written of a network that reads positions from its input.
    """
    began = time.monotonic()
    asked = query if isinstance(query, Query) else read_query(query)
    models = {name: each if isinstance(each, Model) else read_model(each) for name, each in networks.items()}
    run = _Asking(began, timeout, seed, tolerance, None if certificates is None else Path(certificates), name)
    try:
        with uncollected():
            problem = build(asked, models)
    except DataDependentError as error:
        if not error.places:
            raise
        return run.by_positions(Positions.of(asked, models, error, seed))
    return run.answer(problem)


@dataclass(frozen=True)
class _Asking:
    """One call of ``decide``."""

    began: float
    timeout: float
    seed: int
    tolerance: bool
    certificates: Path | None
    name: str

    def by_positions(self, cases: Positions) -> Answer:
        """Decide a query whose networks read positions from their input, case by case; without a certificate."""
        found, said = cases.falsified(self.began + self.timeout / 2), list[Answer]()
        if found is not None:
            return Answer(Status.FALSIFIED, found, "positions", "", time.monotonic() - self.began)
        alone = dataclasses.replace(self, certificates=None)
        for problem in cases.problems():
            said.append(alone.answer(problem))
            if said[-1].status is not Status.ROBUST:
                return said[-1]  # one case that is not proved leaves the query open, or answers it
        return dataclasses.replace(said[-1], float_sound=all(each.float_sound for each in said))

    def answer(self, problem: QueryProblem) -> Answer:
        """Decide a query about one merged network."""
        checks, assignment = Judge(problem), Assignment()

        def judge(x: Tensor) -> bool:
            assignment.update(checks(x) or {})
            return bool(assignment)

        reals = problem.soundness is Soundness.REAL
        stages = STAGES if reals else STAGES[:-1]  # a solver's answer is about reals
        keep = None if self.certificates is None else _certifies(self.certificates, problem, self.name)
        found = decide_formula(
            problem, judge, self.began + self.timeout, seed=self.seed, stages=stages,
            tolerance=self.tolerance and reals, certify=keep,
        )  # fmt: skip
        seconds = time.monotonic() - self.began
        return Answer(found.status, assignment, found.stage, found.detail, seconds, found.float_sound, problem.notes)


def _certifies(path: Path, problem: Problem, name: str) -> Certify:
    from surebound.search.certify import certifies  # most queries need none of it

    return certifies(path, problem.network.program, name)
