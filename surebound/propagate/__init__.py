"""Methods that walk a Program. They name no operator: what they know of one is in surebound.rules."""

from __future__ import annotations

from surebound.propagate.interval import interval_bounds, propagate
from surebound.propagate.margins import worst_margins
from surebound.propagate.training import TrainingPass, training_pass

__all__ = ["TrainingPass", "interval_bounds", "propagate", "training_pass", "worst_margins"]
