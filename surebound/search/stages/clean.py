"""The network's own prediction: an example that is wrong without any perturbation needs no search."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from surebound.search.question import Finding, Questions
from surebound.search.stages.attacks import labels_of
from surebound.search.stages.base import Stage
from surebound.search.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class Clean(Stage):
    """Falsified by the example itself where the prediction is not the label. Sound, not complete."""

    name: ClassVar[str] = "clean"
    bounds: ClassVar[bool] = False

    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        asked = labels_of(questions)
        wrong = (asked.predictions != asked.labels).tolist()
        pairs = zip(questions.region.reference, wrong, strict=True)
        return [Finding(witness=image if bad else None) for image, bad in pairs]
