"""Bounds of outputs and specifications: functions, and the methods that they take.

Methods walk a Program. They name no operator: what they know of one is in surebound.rules. What training needs is
imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from surebound.bounds.forward.hybrid import Hybrid
from surebound.bounds.forward.symbolic import Symbolic
from surebound.bounds.forward.zonotope import Zonotope
from surebound.bounds.interval import interval_bounds, propagate
from surebound.bounds.linear.alpha import Adam
from surebound.bounds.linear.crown import Crown, LinearBounds, linear_bounds
from surebound.bounds.linear.dual import DualBound
from surebound.bounds.margins import METHODS, Method, worst_margins
from surebound.bounds.semidefinite.bound import Semidefinite

if TYPE_CHECKING:
    from surebound.bounds.compact import CompactNetwork
    from surebound.bounds.pruning import Change, Pruning
    from surebound.bounds.training.engine import TrainingPass, training_pass

__all__ = [
    "METHODS",
    "Adam",
    "Change",
    "CompactNetwork",
    "Crown",
    "DualBound",
    "Hybrid",
    "LinearBounds",
    "Method",
    "Pruning",
    "Semidefinite",
    "Symbolic",
    "TrainingPass",
    "Zonotope",
    "interval_bounds",
    "linear_bounds",
    "propagate",
    "training_pass",
    "worst_margins",
]

_LATER = {
    "Change": "pruning",
    "CompactNetwork": "compact",
    "Pruning": "pruning",
    "TrainingPass": "training.engine",
    "training_pass": "training.engine",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    return value
