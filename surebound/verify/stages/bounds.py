"""Stages that bound the margins over the whole region at once: cheap, float-sound, not complete."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from surebound.numerics import Soundness
from surebound.propagate.margins import worst_margins
from surebound.verify.query import Finding, Query, margins_of
from surebound.verify.stages.base import Stage
from surebound.verify.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class IntervalBounds(Stage):
    """Interval bounds of the elided margins (Gowal et al. 2018, eq. 9), sound for the deployed network."""

    name: ClassVar[str] = "interval"

    def decide(self, query: Query, workspace: Workspace) -> list[Finding]:
        with torch.no_grad():
            margins = worst_margins(
                workspace.program(query.region.x), query.region, query.labels, soundness=Soundness.DEPLOYED
            )
        return margins_of(margins.double(), float_sound=True)
