"""The steps that cascades are made of, one file per kind."""

from __future__ import annotations

from surebound.verify.stages.attacks import MultiTargetedAttack, PgdAttack
from surebound.verify.stages.base import Stage
from surebound.verify.stages.bounds import CrownBounds, IntervalBounds
from surebound.verify.stages.branch import BranchAndBound
from surebound.verify.stages.clean import Clean
from surebound.verify.stages.programs import LinearRelaxation, MixedInteger

__all__ = [
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
