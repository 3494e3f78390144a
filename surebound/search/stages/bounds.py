"""Stages that bound the margins over the whole region at once: cheap, float-sound, not complete."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from surebound.search.question import Finding, Proof, Questions, margins_of
from surebound.search.stages.base import Stage
from surebound.search.workspace import Workspace

#: Bounds that a checker computes again by their name alone.
_CHECKED = ("interval", "crown-ibp", "crown")


@dataclasses.dataclass(frozen=True)
class IntervalBounds(Stage):
    """Interval bounds of the elided margins (Gowal et al. 2018, eq. 9), sound for the deployed network."""

    name: ClassVar[str] = "interval"

    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        return _bounded(questions, workspace, "interval")


@dataclasses.dataclass(frozen=True)
class CrownBounds(Stage):
    """Linear bounds of the elided margins, backwards through the network, never looser than intervals.

    ``method``: "crown-ibp", "crown", "wong" or "alpha-crown". Sound for the deployed network. Zhang et al. 2018.
    """

    name: ClassVar[str] = "crown"
    chunk: ClassVar[int] = 64
    method: str = "crown"

    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        return _bounded(questions, workspace, self.method)


def _bounded(questions: Questions, workspace: Workspace, method: str) -> list[Finding]:
    program = workspace.program(questions.region.reference)
    found = questions.asked.bounds(program, questions.region, method, questions.mode)
    return margins_of(found, Proof.of(questions.mode), method if method in _CHECKED else "")
