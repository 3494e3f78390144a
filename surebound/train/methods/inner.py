"""The attack inside a training step, with a radius and a step size of its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from surebound.attack.inner import ascend_by_signs, box, loss_gradient, random_point
from surebound.errors import ConfigError
from surebound.graph.fit import evaluating
from surebound.train.methods.base import Batch


@dataclass(frozen=True)
class InnerAttack:
    """`steps` signed gradient steps in the ball of `scale` times the step's radius, cut to the clip range.

    `step_size` is in half-widths of that box; None: 2.5 / steps, so that one step goes to a corner. The network is in
    evaluation mode meanwhile: batch normalisation uses its running statistics and learns nothing.
    """

    steps: int = 1
    step_size: float | None = None
    scale: float = 1.0
    random_start: bool = True

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.scale > 0 or (self.step_size is not None and not self.step_size > 0):
            raise ConfigError(
                "an inner attack needs steps >= 1, step_size > 0 and scale > 0, got "
                f"steps={self.steps}, step_size={self.step_size}, scale={self.scale}"
            )

    def __call__(self, batch: Batch) -> Tensor:
        """Return images (B, C, H, W) with a higher cross-entropy; at radius 0 the images themselves."""
        if batch.epsilon == 0.0:
            return batch.images
        ends = box(batch.images, self.scale * batch.epsilon, batch.clip)
        start = random_point(*ends, batch.generator) if self.random_start else batch.images
        with evaluating(batch.model):
            return ascend_by_signs(
                lambda point: loss_gradient(batch.model, point, batch.labels), start, ends, self.steps, self.step_size
            )
