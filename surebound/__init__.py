"""surebound: train neural networks whose robustness can be proved, and prove it.

The functions ``sb.attack``, ``sb.train`` and ``sb.verify`` stand before the packages of the same names here; inside
the library those are always imported by ``from surebound.attack import ...``.
"""

from __future__ import annotations

from surebound import models
from surebound.attack import attack
from surebound.attack import methods as attacks
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.propagate.interval import interval_bounds
from surebound.propagate.linear import linear_bounds
from surebound.propagate.margins import worst_margins
from surebound.region import Box, LinfBall
from surebound.spec import LinearSpec
from surebound.train import Evaluation, Plan, methods, train
from surebound.verify import verify
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
    "__version__",
    "attack",
    "attacks",
    "interval_bounds",
    "linear_bounds",
    "load",
    "methods",
    "models",
    "train",
    "verify",
    "worst_margins",
]
