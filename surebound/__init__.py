"""surebound: train neural networks whose robustness can be proved, and prove it.

Names are imported when they are first used, so that ``surebound --help`` and short proofs do not wait for what they
do not need. The functions ``sb.attack``, ``sb.train`` and ``sb.verify`` stand before the packages of the same names
here; inside the library those are always imported by ``from surebound.attack import ...``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surebound import attack as attacks
    from surebound import bounds, data, errors, models, vnnlib
    from surebound import train as training
    from surebound.attack import AttackResult, attack
    from surebound.bounds import LinearBounds, interval_bounds, linear_bounds, worst_margins
    from surebound.bounds.compact import compact
    from surebound.experiment.target import load
    from surebound.experiment.train import train
    from surebound.graph import choose, forget
    from surebound.interval import Interval
    from surebound.norm_ball import L1Ball, L2Ball
    from surebound.numerics import Soundness
    from surebound.pixel_ball import L0Ball, Patch
    from surebound.region import Box, LinfBall
    from surebound.rules.support import Support, check
    from surebound.search import stages
    from surebound.search.cascade import Cascade, cascade
    from surebound.search.record import Record
    from surebound.search.specification import decide
    from surebound.spec import LinearSpec, Spec
    from surebound.threats import threat
    from surebound.train import Evaluation, Outcome, Plan
    from surebound.verdict import Status, Verdict
    from surebound.verify import Progress, Results, Summary, verify

__version__ = "0.1.0"

#: Public name -> where it comes from: a module, or a module and a name in it.
_HOMES = {
    "AttackResult": "surebound.attack:AttackResult",
    "Box": "surebound.region:Box",
    "Cascade": "surebound.search.cascade:Cascade",
    "Evaluation": "surebound.train:Evaluation",
    "Interval": "surebound.interval:Interval",
    "L0Ball": "surebound.pixel_ball:L0Ball",
    "L1Ball": "surebound.norm_ball:L1Ball",
    "L2Ball": "surebound.norm_ball:L2Ball",
    "LinearBounds": "surebound.bounds.linear.crown:LinearBounds",
    "LinearSpec": "surebound.spec:LinearSpec",
    "LinfBall": "surebound.region:LinfBall",
    "Outcome": "surebound.train:Outcome",
    "Patch": "surebound.pixel_ball:Patch",
    "Plan": "surebound.train:Plan",
    "Progress": "surebound.verify:Progress",
    "Record": "surebound.search.record:Record",
    "Results": "surebound.verify:Results",
    "Soundness": "surebound.numerics:Soundness",
    "Spec": "surebound.spec:Spec",
    "Status": "surebound.verdict:Status",
    "Summary": "surebound.verify:Summary",
    "Support": "surebound.rules.support:Support",
    "Verdict": "surebound.verdict:Verdict",
    "attack": "surebound.attack:attack",
    "attacks": "surebound.attack",
    "bounds": "surebound.bounds",
    "cascade": "surebound.search.cascade:cascade",
    "check": "surebound.rules.support:check",
    "choose": "surebound.graph:choose",
    "compact": "surebound.bounds.compact:compact",
    "data": "surebound.data",
    "decide": "surebound.search.specification:decide",
    "errors": "surebound.errors",
    "forget": "surebound.graph:forget",
    "interval_bounds": "surebound.bounds.interval:interval_bounds",
    "linear_bounds": "surebound.bounds.linear.crown:linear_bounds",
    "load": "surebound.experiment.target:load",
    "models": "surebound.models",
    "stages": "surebound.search.stages",
    "threat": "surebound.threats:threat",
    "train": "surebound.experiment.train:train",
    "training": "surebound.train",
    "verify": "surebound.verify:verify",
    "vnnlib": "surebound.vnnlib",
    "worst_margins": "surebound.bounds.margins:worst_margins",
}

__all__ = [
    "AttackResult",
    "Box",
    "Cascade",
    "Evaluation",
    "Interval",
    "L0Ball",
    "L1Ball",
    "L2Ball",
    "LinearBounds",
    "LinearSpec",
    "LinfBall",
    "Outcome",
    "Patch",
    "Plan",
    "Progress",
    "Record",
    "Results",
    "Soundness",
    "Spec",
    "Status",
    "Summary",
    "Support",
    "Verdict",
    "__version__",
    "attack",
    "attacks",
    "bounds",
    "cascade",
    "check",
    "choose",
    "compact",
    "data",
    "decide",
    "errors",
    "forget",
    "interval_bounds",
    "linear_bounds",
    "load",
    "models",
    "stages",
    "threat",
    "train",
    "training",
    "verify",
    "vnnlib",
    "worst_margins",
]


def _public(name: str) -> Any:
    home, _, inside = _HOMES[name].partition(":")
    module = importlib.import_module(home)
    return getattr(module, inside) if inside else module


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'surebound' has no attribute {name!r}")
    value = globals()[name] = _public(name)
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


class _Package(ModuleType):
    """Importing the package surebound.attack would bind its name here: the function keeps it."""

    attack = property(lambda self: _public("attack"), lambda self, value: None)
    train = property(lambda self: _public("train"), lambda self, value: None)
    verify = property(lambda self: _public("verify"), lambda self, value: None)


sys.modules[__name__].__class__ = _Package
