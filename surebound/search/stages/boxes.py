"""Bounds of open cases that have boxes of their own."""

from __future__ import annotations

import dataclasses
import time
from typing import ClassVar

from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.search.boxes import bounds_by_box
from surebound.search.question import Finding, Proof, Questions, nothing
from surebound.search.stages.base import Stage
from surebound.search.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class BoundsByBox(Stage):
    """Bounds of every open case over its own box, many boxes at a time, until time ends; what is proved is left out.

    ``method``: a name that ``worst_margins`` knows.
    """

    name: ClassVar[str] = "bounds"
    method: str = "crown"

    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        try:
            return [self._one(questions, i, workspace) for i in range(len(questions))]
        except (UnsupportedOperatorError, BoundError) as error:
            return nothing(len(questions), str(error).splitlines()[0])

    def _one(self, questions: Questions, i: int, workspace: Workspace) -> Finding:
        end = time.monotonic() + questions.seconds
        question = questions.one(i)
        program = workspace.program(question.cases.lower[:1])
        margins = bounds_by_box(program, question.cases, self.method, questions.mode, end)
        found = Finding(margins=margins, proof=Proof.of(questions.mode), timed_out=time.monotonic() > end)
        return questions.spread(found, question)
