"""Adversarial training (Madry et al. 2018), with the inner attack of the paper's appendix A."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from surebound.attack.inner import ascend, box, random_point
from surebound.errors import ConfigError
from surebound.train.losses import cross_entropy, error
from surebound.train.methods.base import Batch, Loss, Method


@dataclass(frozen=True)
class Adversarial(Method):
    """Cross-entropy at the images an attack finds in the ball: `steps` steps of Adam, projected on the box.

    Property: lowers the error under attack; proves nothing. Batch normalisation is frozen while attacking.
    """

    name: ClassVar[str] = "adversarial"
    robust: ClassVar[bool] = True

    steps: int = 7
    step_size: float = 0.1
    random_start: bool = True

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.step_size > 0:
            raise ConfigError(
                f"an attack needs steps >= 1 and step_size > 0, got steps={self.steps}, step_size={self.step_size}"
            )

    def loss(self, batch: Batch) -> Loss:
        """Return the cross-entropy at the attacked images."""
        images = self.attack(batch) if batch.epsilon > 0 else batch.images
        logits = batch.model(images)  # (B, K)
        return Loss(cross_entropy(logits, batch.labels), {"attacked_error": error(logits.detach(), batch.labels)})

    def attack(self, batch: Batch) -> Tensor:
        """Images (B, C, H, W) in the ball and the clip range that raise the cross-entropy."""
        lower, upper = box(batch.images, batch.epsilon, batch.clip)
        start = random_point(lower, upper, batch.generator) if self.random_start else batch.images
        return ascend(batch.model, start, (lower, upper), batch.labels, self.steps, self.step_size)
