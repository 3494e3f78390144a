"""The steps that cascades are made of, one file per kind."""

from __future__ import annotations

from surebound.search.stages.ascent import Ascent
from surebound.search.stages.attacks import MultiTargetedAttack, PgdAttack
from surebound.search.stages.base import Stage
from surebound.search.stages.bounds import CrownBounds, IntervalBounds
from surebound.search.stages.branch import BranchAndBound
from surebound.search.stages.clean import Clean
from surebound.search.stages.programs import LinearRelaxation, MixedInteger

__all__ = [
    "Ascent",
    "BranchAndBound",
    "Clean",
    "CrownBounds",
    "IntervalBounds",
    "LinearRelaxation",
    "MixedInteger",
    "MultiTargetedAttack",
    "PgdAttack",
    "Stage",
]
