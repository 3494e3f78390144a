"""TAPS and STAPS: a box through the first layers, an attack inside it through the others (Mao et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.attack.inner import ascend_by_signs, random_point
from surebound.bounds.training.latent import SecondPart, latent_value, linked
from surebound.errors import ConfigError
from surebound.interval import Interval
from surebound.train.losses import verified_error
from surebound.train.methods.base import Batch, Loss, Method
from surebound.train.methods.inner import InnerAttack
from surebound.train.methods.sabr import check_size, small_box
from surebound.train.regularise import BoundRegulariser


@dataclass(frozen=True)
class TAPS(Method):
    """CE(attacked margins in the hidden box) · CE(worst-case margins) of each example, mean over the batch.

    Intervals bound the layers up to the last `activations` activations; for every wrong class, `steps` signed steps
    look for the point of that hidden box with the largest margin. The point's gradient goes to the ends of the box, up
    to `link` of its width away. `weight` is how much the attacked loss's gradient counts beside the bounds' one. With
    `size` < 1 the input box is SABR's small one: STAPS. Batch normalisation uses the statistics of the boxes' centres,
    in both parts. At radius 0 it is the clean cross-entropy; the plan's kappa plays no part.

    Property: the first factor is an estimate between the robust loss of the hidden box and that of one of its points.
    Reference: Mao et al. 2023, "Connecting certified and adversarial training", section 3.
    """

    name: ClassVar[str] = "taps"
    bound_based: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    activations: int = 1
    steps: int = 10
    link: float = 0.5
    weight: float = 1.0
    size: float = 1.0
    attack: InnerAttack = InnerAttack()
    regulariser: BoundRegulariser | None = None

    def __post_init__(self) -> None:
        check_size(self.size)
        if self.activations < 0 or self.steps < 1 or not (0 < self.link <= 1 and self.weight > 0):
            raise ConfigError(
                "TAPS needs activations >= 0, steps >= 1, 0 < link <= 1 and weight > 0, got "
                f"activations={self.activations}, steps={self.steps}, link={self.link}, weight={self.weight}"
            )

    def loss(self, batch: Batch) -> Loss:
        """Return the product of the two losses; at radius 0 that of the bounds alone."""
        inside = small_box(batch, self.size, self.attack)
        record = batch.intensity(self.regulariser) > 0.0
        cut = latent_value(batch.program.graph, self.activations)
        attacks = batch.epsilon > 0.0
        done = inside.bounded(
            clean=False, batch_statistics=batch.model.training, record=record, keep=(cut,) if attacks else ()
        )
        margins = done.computed_margins  # (B, K)
        bounded = F.cross_entropy(margins, batch.labels, reduction="none")  # (B,)
        key = "verified_error" if self.size == 1.0 else "box_error"
        scalars = {key: verified_error(margins.detach(), batch.labels)}
        value = bounded.mean()
        if attacks:
            second = SecondPart(batch.program, cut, done.norms if batch.model.training else {})
            found = self._attacked(batch, second, done.kept[cut])  # (B, K)
            scalars["attacked_error"] = verified_error(found.detach(), batch.labels)
            value = self._product(F.cross_entropy(found, batch.labels, reduction="none"), bounded).mean()
        return inside.regularised(Loss(value, scalars), self.regulariser, done)

    def _attacked(self, batch: Batch, second: SecondPart, hidden: Interval) -> Tensor:
        """Return the largest margins (B, K) found, each at a point of its own in the hidden boxes (B, ...)."""
        classes, frozen = batch.program.outputs, second.frozen()
        rows = torch.arange(len(batch.labels), device=batch.labels.device).repeat_interleave(classes)  # (B K,)
        wrong = torch.arange(classes, device=batch.labels.device).repeat(len(batch.labels))
        true = batch.labels[rows]

        def margin(part: SecondPart, point: Tensor) -> Tensor:
            outputs = part(point)  # (B K, K)
            return (outputs.gather(1, wrong[:, None]) - outputs.gather(1, true[:, None])).squeeze(1)

        def gradient(point: Tensor) -> Tensor:
            with torch.enable_grad():
                point = point.detach().requires_grad_()
                return torch.autograd.grad(margin(frozen, point).sum(), point)[0]

        lower, upper = hidden.lower[rows], hidden.upper[rows]
        ends = lower.detach(), upper.detach()
        point = ascend_by_signs(gradient, random_point(*ends, batch.generator), ends, self.steps)
        return margin(second, linked(point, lower, upper, self.link)).view(-1, classes)

    def _product(self, attacked: Tensor, bounded: Tensor) -> Tensor:
        """Multiply losses (B,); in the gradient the first one's part counts `weight` times as much as the second's."""
        share = 2.0 * self.weight / (1.0 + self.weight)
        there = (attacked * bounded).detach()
        return share * attacked * bounded.detach() + (2.0 - share) * attacked.detach() * bounded - there
