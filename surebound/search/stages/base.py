"""The interface of a stage."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import ClassVar, TypeVar

from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.search.question import Finding, Question, Questions
from surebound.search.workspace import Workspace


class Stage(abc.ABC):
    """One step of a cascade: a frozen dataclass of its settings with one method.

    To write one: subclass as a frozen dataclass, set ``name``, and ``chunk`` to how many examples it wants at
    once. ``decide`` gets examples that are still open and returns one Finding each: bounds, or a candidate
    witness, or nothing. It never gives verdicts: merging, re-running witnesses and keeping time are done for it
    (search/verdicts.py), so that no stage can get them wrong.
    """

    name: ClassVar[str]
    chunk: ClassVar[int] = 256
    #: Does it bound the network, so that every operator needs a rule?
    bounds: ClassVar[bool] = True
    #: Is it an attack? What it falsifies counts into the "PGD error".
    is_attack: ClassVar[bool] = False

    @abc.abstractmethod
    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        """Return one finding per question, in order."""

    def check(self) -> None:  # noqa: B027  (most stages need nothing)
        """Raise if this stage cannot run here, e.g. because a package is missing."""


class OneByOne(Stage):
    """A stage that answers one example's question at a time."""

    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        each = (questions.one(i) for i in range(len(questions)))
        return [questions.spread(self.answer(question, workspace), question) for question in each]

    @abc.abstractmethod
    def answer(self, question: Question, workspace: Workspace) -> Finding:
        """Return a finding about the question's open cases."""


Answering = TypeVar("Answering", bound=OneByOne)
Answer = Callable[[Answering, Question, Workspace], Finding]


def open_if_refused(answer: Answer[Answering]) -> Answer[Answering]:
    """Leave a question open, and say why, where the network has operators or values without bounds."""

    @functools.wraps(answer)
    def answered(stage: Answering, question: Question, workspace: Workspace) -> Finding:
        try:
            return answer(stage, question, workspace)
        except (UnsupportedOperatorError, BoundError) as error:
            return Finding(detail=str(error).splitlines()[0])

    return answered
