"""Bounds of open cases that have boxes of their own."""

from __future__ import annotations

import dataclasses
import time
from typing import ClassVar

from surebound.search.boxes import bounds_by_box
from surebound.search.question import Finding, Proof, Question
from surebound.search.stages.base import OneByOne, open_if_refused
from surebound.search.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class BoundsByBox(OneByOne):
    """Bounds of every open case over its own box, many boxes at a time, until time ends; what is proved is left out.

    ``method``: a name that ``worst_margins`` knows.
    """

    name: ClassVar[str] = "bounds"
    method: str = "crown"

    @open_if_refused
    def answer(self, question: Question, workspace: Workspace) -> Finding:
        end = time.monotonic() + question.seconds
        program = workspace.program(question.cases.lower[:1])
        margins = bounds_by_box(program, question.cases, self.method, question.mode, end)
        return Finding(margins=margins, proof=Proof.of(question.mode), timed_out=time.monotonic() > end)
