"""surebound: train neural networks whose robustness can be proved, and prove it."""

from __future__ import annotations

from surebound import models
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.propagate.interval import interval_bounds
from surebound.propagate.margins import worst_margins
from surebound.region import Box, LinfBall
from surebound.spec import LinearSpec

__version__ = "0.1.0"

__all__ = [
    "Box",
    "Interval",
    "LinearSpec",
    "LinfBall",
    "Soundness",
    "__version__",
    "interval_bounds",
    "models",
    "worst_margins",
]
