"""The complete search by branch and bound: float-sound, batched over sub-problems and classes, the workhorse."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from surebound.errors import InputError
from surebound.search.branch_and_bound import Options
from surebound.search.complete import search
from surebound.search.question import Finding, Question, Questions
from surebound.search.rule import SPLITS
from surebound.search.stages.base import OneByOne, open_if_refused
from surebound.search.workspace import Workspace
from surebound.solvers import find


@dataclasses.dataclass(frozen=True)
class BranchAndBound(OneByOne):
    """Splits on unstable ReLUs, linear bounds with optimised multipliers, attacks from open sub-problems.

    Few inputs are split themselves (search/rule.py), unless ``splits`` names what to split, in order.
    Sound for the deployed network, or over the reals where only rounding forbids that; complete for ReLU networks but
    for margins within rounding of 0.
    Wang et al. 2021; see search/complete.py.
    """

    name: ClassVar[str] = "branch-and-bound"
    chunk: ClassVar[int] = 1
    options: Options = Options(reals=True)
    splits: tuple[str, ...] = ()  # of "input-splitting", "relu-splitting", "range-splitting"; none: by the rule

    def __post_init__(self) -> None:
        if not set(self.splits) <= set(SPLITS):
            raise InputError(f"splits={self.splits!r}; name one or more of {', '.join(SPLITS)}, or none")

    def check(self) -> None:
        find(self.options.solver)

    @open_if_refused
    def answer(self, question: Question, workspace: Workspace) -> Finding:
        return search(question, workspace, self.options, self.splits)


def again(questions: Questions, i: int, workspace: Workspace) -> Finding:
    """Prove one example's open cases for a certificate, where another stage proved them without evidence."""
    question = questions.one(i)
    return questions.spread(BranchAndBound().answer(question, workspace), question)
