"""Attacks: inputs inside a region that break the network, each re-run through it before it is reported."""

from __future__ import annotations

from surebound.attack.base import Attack
from surebound.attack.methods import (
    BY_NAME,
    FGSM,
    PGD,
    SPSA,
    Adam,
    CarliniWagner,
    MultiTargeted,
    Sign,
    StepDecay,
    StepRule,
)
from surebound.attack.result import AttackProgress, AttackResult
from surebound.attack.search import attack

__all__ = [
    "BY_NAME", "FGSM", "PGD", "SPSA", "Adam", "Attack", "AttackProgress", "AttackResult", "CarliniWagner",
    "MultiTargeted", "Sign", "StepDecay", "StepRule", "attack",
]  # fmt: skip
