"""Stages that look for counterexamples: what they find is one, what they do not find is nothing."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from surebound.attack import Attack, attack
from surebound.attack.methods import PGD, MultiTargeted
from surebound.errors import InputError
from surebound.search.labels import Labels
from surebound.search.question import Finding, Questions, nothing
from surebound.search.stages.base import Stage
from surebound.search.workspace import Workspace
from surebound.spec import LinearSpec, classification


def labels_of(questions: Questions) -> Labels:
    """Return the labels that a stage for classifiers needs."""
    if not isinstance(questions.asked, Labels):
        raise InputError("this stage is for labels; formulas are attacked by the stage 'attack'")
    return questions.asked


def _search(method: Attack, questions: Questions, workspace: Workspace) -> list[Finding]:
    labels = labels_of(questions).labels
    result = attack(workspace.model, questions.region, labels, method, seed=questions.seed, names=questions.indices)
    pairs = zip(result.adversarial, result.success.tolist(), strict=True)
    return [Finding(witness=x.detach() if broken else None) for x, broken in pairs]


@dataclasses.dataclass(frozen=True)
class PgdAttack(Stage):
    """Projected gradient ascent on the largest margin; the paper's setting is 200 steps, 10 restarts."""

    name: ClassVar[str] = "pgd"
    chunk: ClassVar[int] = 64
    is_attack: ClassVar[bool] = True
    bounds: ClassVar[bool] = False
    steps: int = 200
    restarts: int = 10

    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        return _search(PGD(steps=self.steps, restarts=self.restarts), questions, workspace)


@dataclasses.dataclass(frozen=True)
class MultiTargetedAttack(Stage):
    """Gradient ascent towards each class in turn that no bound has ruled out yet."""

    name: ClassVar[str] = "multi-targeted"
    chunk: ClassVar[int] = 64
    is_attack: ClassVar[bool] = True
    bounds: ClassVar[bool] = False
    steps: int = 100
    restarts: int = 2

    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        method = MultiTargeted(steps=self.steps, restarts=self.restarts)
        findings = nothing(len(questions))
        counts = questions.open_cases.sum(1)
        # the search wants equally many rows of each example
        for count in sorted({int(n) for n in counts} - {0}):
            places = (counts == count).nonzero()[:, 0]
            part, labels = questions.take(places), labels_of(questions).labels[places]
            every = classification(labels, part.margins.shape[1], part.region.reference.dtype)
            rows = every.c[part.open_cases].reshape(len(part), count, -1)
            result = attack(
                workspace.model, part.region, None, method, spec=LinearSpec(rows), seed=part.seed, names=part.indices
            )  # fmt: skip
            for place, x, broken in zip(places.tolist(), result.adversarial, result.success.tolist(), strict=True):
                findings[place] = Finding(witness=x.detach() if broken else None)
        return findings
