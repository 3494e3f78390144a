"""Methods that walk a Program. They name no operator: what they know of one is in surebound.rules."""

from __future__ import annotations

from surebound.bounds.interval import interval_bounds, propagate
from surebound.bounds.margins import worst_margins
from surebound.bounds.training.engine import TrainingPass, training_pass

__all__ = ["TrainingPass", "interval_bounds", "propagate", "training_pass", "worst_margins"]
