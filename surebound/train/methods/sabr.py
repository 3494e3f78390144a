"""SABR: interval bounds of a small box around an attacked image inside the ball (Müller et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from surebound.errors import ConfigError
from surebound.train.losses import cross_entropy, verified_error
from surebound.train.methods.base import Batch, Loss, Method
from surebound.train.methods.inner import InnerAttack
from surebound.train.regularise import BoundRegulariser


@dataclass(frozen=True)
class SABR(Method):
    """CE(worst-case margins of a small box inside the ball).

    The box has radius `size` · eps around an attacked image that was moved to within (1 - size) · eps of the clean one.
    `size` is the paper's lambda: at 1 this is IBP without a clean loss, towards 0 it is adversarial training. Batch
    normalisation uses the statistics of the boxes' centres. The plan's kappa plays no part.

    Property: an estimate of the robust loss, never above the interval bounds' one; what it calls `box_error` proves
    nothing about the ball.
    Reference: Müller et al. 2023, "Certified training: small boxes are all you need", section 3.
    """

    name: ClassVar[str] = "sabr"
    bound_based: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    size: float = 0.4
    attack: InnerAttack = InnerAttack()
    regulariser: BoundRegulariser | None = None

    def __post_init__(self) -> None:
        check_size(self.size)

    def loss(self, batch: Batch) -> Loss:
        """Return the loss of the small boxes."""
        inside = small_box(batch, self.size, self.attack)
        record = batch.intensity(self.regulariser) > 0.0
        done = inside.bounded(clean=False, batch_statistics=batch.model.training, record=record)
        margins = done.computed_margins  # (B, K)
        scalars = {"box_error": verified_error(margins.detach(), batch.labels)}
        return inside.regularised(Loss(cross_entropy(margins, batch.labels), scalars), self.regulariser, done)


def check_size(size: float) -> None:
    """Refuse a relative size of a box that is not in (0, 1]."""
    if not 0 < size <= 1:
        raise ConfigError(f"size, of the small box relative to the ball, must be above 0 and at most 1, got {size}")


def small_box(batch: Batch, size: float, attack: InnerAttack) -> Batch:
    """Replace each ball of a batch by a box inside it, near an attacked image, of `size` times its radius."""
    if size == 1.0 or batch.epsilon == 0.0:
        return batch
    reach = (1.0 - size) * batch.epsilon
    centers = attack(batch).clamp(batch.images - reach, batch.images + reach)  # (B, C, H, W)
    return replace(batch, images=centers, epsilon=size * batch.epsilon, eps_train=size * batch.eps_train)
