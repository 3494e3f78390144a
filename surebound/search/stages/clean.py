"""The network's own prediction: an example that is wrong without any perturbation needs no search."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from surebound.search.query import Finding, Query
from surebound.search.stages.base import Stage
from surebound.search.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class Clean(Stage):
    """Falsified by the example itself where the prediction is not the label. Sound, not complete."""

    name: ClassVar[str] = "clean"
    bounds: ClassVar[bool] = False

    def decide(self, query: Query, workspace: Workspace) -> list[Finding]:
        x = query.region.reference
        wrong = workspace.logits(x).argmax(1) != query.labels
        return [Finding(witness=image if bad else None) for image, bad in zip(x, wrong.tolist(), strict=True)]
