"""Stages that bound the margins over the whole region at once: cheap, float-sound, not complete."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from surebound.bounds.margins import worst_margins
from surebound.numerics import Soundness
from surebound.search.query import Finding, Query, margins_of
from surebound.search.stages.base import Stage
from surebound.search.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class IntervalBounds(Stage):
    """Interval bounds of the elided margins (Gowal et al. 2018, eq. 9), sound for the deployed network."""

    name: ClassVar[str] = "interval"

    def decide(self, query: Query, workspace: Workspace) -> list[Finding]:
        return _bounded(query, workspace, "interval")


@dataclasses.dataclass(frozen=True)
class CrownBounds(Stage):
    """Linear bounds of the elided margins, backwards through the network, never looser than intervals.

    ``method``: "crown-ibp", "crown", "wong" or "alpha-crown". Sound for the deployed network. Zhang et al. 2018.
    """

    name: ClassVar[str] = "crown"
    chunk: ClassVar[int] = 64
    method: str = "crown"

    def decide(self, query: Query, workspace: Workspace) -> list[Finding]:
        return _bounded(query, workspace, self.method)


def _bounded(query: Query, workspace: Workspace, method: str) -> list[Finding]:
    program = workspace.program(query.region.reference)
    with torch.no_grad():
        margins = worst_margins(
            program, query.region, query.labels, method=method, soundness=Soundness.DEPLOYED
        )
    return margins_of(margins.double(), float_sound=True)
