"""Standard training: cross-entropy on clean images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from surebound.train.losses import cross_entropy, error
from surebound.train.methods.base import Batch, Loss, Method


@dataclass(frozen=True)
class Nominal(Method):
    """Cross-entropy of the clean logits. Property: nothing is proved, nothing is attacked."""

    name: ClassVar[str] = "nominal"

    def loss(self, batch: Batch) -> Loss:
        """Return CE(z, y)."""
        logits = batch.model(batch.images)  # (B, K)
        return Loss(cross_entropy(logits, batch.labels), {"clean_error": error(logits.detach(), batch.labels)})
