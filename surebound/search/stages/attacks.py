"""Stages that look for counterexamples: what they find is one, what they do not find is nothing."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from surebound.attack import Attack, attack_region
from surebound.attack.methods import PGD, MultiTargeted
from surebound.search.query import Finding, Query, nothing
from surebound.search.stages.base import Stage
from surebound.search.workspace import Workspace
from surebound.spec import LinearSpec


def _search(method: Attack, query: Query, workspace: Workspace) -> list[Finding]:
    result = attack_region(
        workspace.model, query.region, query.labels, method, seed=query.seed, names=query.indices
    )
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

    def decide(self, query: Query, workspace: Workspace) -> list[Finding]:
        return _search(PGD(steps=self.steps, restarts=self.restarts), query, workspace)


@dataclasses.dataclass(frozen=True)
class MultiTargetedAttack(Stage):
    """Gradient ascent towards each class in turn that no bound has ruled out yet."""

    name: ClassVar[str] = "multi-targeted"
    chunk: ClassVar[int] = 64
    is_attack: ClassVar[bool] = True
    bounds: ClassVar[bool] = False
    steps: int = 100
    restarts: int = 2

    def decide(self, query: Query, workspace: Workspace) -> list[Finding]:
        method = MultiTargeted(steps=self.steps, restarts=self.restarts)
        findings = nothing(len(query))
        counts = query.open_rows.sum(1)
        # the search wants equally many rows of each example
        for count in sorted({int(n) for n in counts} - {0}):
            places = (counts == count).nonzero()[:, 0]
            part = query.take(places)
            rows = part.spec.c[part.open_rows].reshape(len(part), count, -1)
            result = attack_region(
                workspace.model, part.region, None, method, spec=LinearSpec(rows), seed=part.seed, names=part.indices
            )  # fmt: skip
            for place, x, broken in zip(
                places.tolist(), result.adversarial, result.success.tolist(), strict=True
            ):
                findings[place] = Finding(witness=x.detach() if broken else None)
        return findings
