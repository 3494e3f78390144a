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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from surebound.graph.onnx.file import Model, read_model
from surebound.numerics import Soundness
from surebound.search.formulas.search import STAGES, Search
from surebound.vnnlib.problem import build
from surebound.vnnlib.query import Query
from surebound.vnnlib.text import read_query
from surebound.vnnlib.witness import Assignment, Judge

#: Without the one whose proofs rest on a tolerance: those are about reals, and only for who asks about reals.
FLOAT_SOUND = STAGES[:-1]


class Verdict(enum.Enum):
    """What can be said of a query, in the standard's words."""

    SAT = "sat"
    UNSAT = "unsat"
    UNKNOWN = "unknown"
    TIMED_OUT = "timed-out"


_WORDS = {"unsat": Verdict.UNSAT, "sat": Verdict.SAT, "timeout": Verdict.TIMED_OUT}


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
    problem = build(asked, models)
    checks, assignment = Judge(problem), Assignment()

    def judge(x: Tensor) -> bool:
        assignment.update(checks(x) or {})
        return bool(assignment)

    stages = STAGES if problem.soundness is Soundness.REAL else FLOAT_SOUND
    decision = Search(problem, judge, began + timeout, seed, stages).decide()
    verdict = _WORDS.get(decision.found, Verdict.UNKNOWN)
    return Answer(verdict, assignment, decision.stage, decision.detail, time.monotonic() - began)
