"""The attack on questions of any kind: ascent on the smallest row of every open case, then on what all rows lack."""

from __future__ import annotations

import dataclasses
import time
from typing import ClassVar

import torch
from torch import Tensor

from surebound.attack.climb import Attack, Network, climb, starts
from surebound.attack.pursuit import pursue
from surebound.attack.through import straight_through
from surebound.search.question import Cases, Finding, Question
from surebound.search.stages.base import OneByOne
from surebound.search.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class Ascent(OneByOne):
    """Climb from the middle of every case's box and from random points, some at a time.

    points:  starts that are climbed together
    checked: points of these that are run through the network
    share:   of the time that is left, for the longer of the two attacks
    """

    name: ClassVar[str] = "attack"
    is_attack: ClassVar[bool] = True
    points: int = 64
    cases: int = 256  # at most, the first ones
    checked: int = 64
    share: float = 0.03

    def answer(self, question: Question, workspace: Workspace) -> Finding:
        end = time.monotonic() + question.seconds
        cases = question.cases[torch.arange(min(len(question.cases), self.cases))]
        network = straight_through(workspace.program(cases.lower[:1]))
        for attack in (climb, pursue):
            witness = self._by(attack, network, question, cases, end)
            if witness is not None:
                return Finding(witness=witness)
            end = min(end, time.monotonic() + self.share * question.seconds)
        return Finding()

    def _by(self, attack: Attack, network: Network, question: Question, cases: Cases, end: float) -> Tensor | None:
        """Attack the cases, some at a time, from the middle of each and from random points."""
        restarts = max(1, self.points // max(1, len(cases)))
        for part in torch.split(torch.arange(len(cases)), self.points):
            some = cases[part]
            low, high = some.boxes
            again = torch.arange(len(some)).repeat(restarts)
            found = attack(
                network, starts(low, high, question.seed, restarts), low[again], high[again], some.c[again],
                some.d[again], end,
            )  # fmt: skip
            for tried, (point, start) in enumerate(found):
                witness = question.confirm(point, int(some.box[again[start]]))
                if witness is not None:
                    return witness
                if tried >= self.checked or time.monotonic() > end:
                    break
        return None
