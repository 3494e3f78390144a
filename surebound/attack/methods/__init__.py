"""The attacks: one file each. ``BY_NAME`` gives them by the names that the command line uses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from surebound.attack.base import Attack
from surebound.attack.methods.carlini_wagner import CarliniWagner
from surebound.attack.methods.fgsm import FGSM
from surebound.attack.methods.multi_targeted import MultiTargeted
from surebound.attack.methods.pgd import PGD
from surebound.attack.methods.spsa import SPSA
from surebound.attack.steps import Adam, Sign, StepDecay, StepRule

BY_NAME: Mapping[str, type[Attack]] = MappingProxyType(
    {
        "pgd": PGD,
        "multi-targeted": MultiTargeted,
        "fgsm": FGSM,
        "spsa": SPSA,
        "carlini-wagner": CarliniWagner,
    }
)

__all__ = [
    "BY_NAME", "FGSM", "PGD", "SPSA", "Adam", "Attack", "CarliniWagner", "MultiTargeted", "Sign", "StepDecay",
    "StepRule",
]  # fmt: skip
