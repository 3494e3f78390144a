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
    from surebound import models
    from surebound.attack import attack
    from surebound.attack import methods as attacks
    from surebound.bounds.compact import compact
    from surebound.bounds.interval import interval_bounds
    from surebound.bounds.linear.crown import linear_bounds
    from surebound.bounds.margins import worst_margins
    from surebound.graph import forget
    from surebound.interval import Interval
    from surebound.numerics import Soundness
    from surebound.region import Box, LinfBall
    from surebound.search.specification import decide
    from surebound.spec import LinearSpec, Spec
    from surebound.train import Evaluation, Plan, methods, train
    from surebound.verify import verify
    from surebound.vnnlib import load_onnx
    from surebound.zoo import load

__version__ = "0.1.0"

__all__ = [
    "Box",
    "Evaluation",
    "Interval",
    "LinearSpec",
    "LinfBall",
    "Plan",
    "Soundness",
    "Spec",
    "__version__",
    "attack",
    "attacks",
    "compact",
    "decide",
    "forget",
    "interval_bounds",
    "linear_bounds",
    "load",
    "load_onnx",
    "methods",
    "models",
    "train",
    "verify",
    "worst_margins",
]

#: Public name -> where it comes from: a module, or a module and a name in it.
_HOMES = {
    "Box": "surebound.region:Box",
    "Evaluation": "surebound.train:Evaluation",
    "Interval": "surebound.interval:Interval",
    "LinearSpec": "surebound.spec:LinearSpec",
    "LinfBall": "surebound.region:LinfBall",
    "Plan": "surebound.train:Plan",
    "Soundness": "surebound.numerics:Soundness",
    "Spec": "surebound.spec:Spec",
    "attack": "surebound.attack:attack",
    "attacks": "surebound.attack.methods",
    "compact": "surebound.bounds.compact:compact",
    "decide": "surebound.search.specification:decide",
    "forget": "surebound.graph:forget",
    "interval_bounds": "surebound.bounds.interval:interval_bounds",
    "linear_bounds": "surebound.bounds.linear.crown:linear_bounds",
    "load": "surebound.zoo:load",
    "load_onnx": "surebound.vnnlib.files:load_onnx",
    "methods": "surebound.train.methods",
    "models": "surebound.models",
    "train": "surebound.train:train",
    "verify": "surebound.verify:verify",
    "worst_margins": "surebound.bounds.margins:worst_margins",
}


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
