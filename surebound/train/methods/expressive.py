"""What the expressive losses share: one pass over attacked images and boxes, joined by a coefficient alpha."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from surebound.bounds.training.engine import TrainingPass
from surebound.errors import ConfigError
from surebound.train.losses import cross_entropy, error, verified_error
from surebound.train.methods.base import Batch, Loss, Method
from surebound.train.methods.inner import InnerAttack
from surebound.train.regularise import BoundRegulariser


@dataclass(frozen=True)
class Expressive(Method):
    """A loss between that of an attack (alpha = 0) and that of the interval bounds (alpha = 1), rising with alpha.

    Outputs at the attacked images and bounds of the ball are computed in one walk. Batch normalisation uses the
    statistics of the attacked batch, in both parts, and learns from it; the attack itself runs on the running ones.
    With `ramp_alpha` the coefficient grows with the radius, alpha · eps / eps_train. The plan's kappa plays no part: at
    radius 0 all of these are the clean cross-entropy.

    Reference: De Palma et al. 2024, "Expressive losses for verified robustness via convex combinations", section 3.
    """

    bound_based: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    alpha: float = 0.5
    ramp_alpha: bool = False
    attack: InnerAttack = InnerAttack()
    regulariser: BoundRegulariser | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha must be between 0 (the attack) and 1 (the bounds), got {self.alpha}")

    @abstractmethod
    def joined(self, logits: Tensor, margins: Tensor, labels: Tensor, alpha: float) -> Tensor:
        """Join attacked logits (B, K) and worst-case margins (B, K) to a loss, for 0 < alpha < 1."""

    def coefficient(self, epsilon: float, eps_train: float) -> float:
        """Return alpha at a radius."""
        return self.alpha * min(1.0, epsilon / eps_train) if self.ramp_alpha else self.alpha

    def loss(self, batch: Batch) -> Loss:
        """Return the joined loss; the part whose weight is 0 is not computed."""
        alpha = self.coefficient(batch.epsilon, batch.eps_train) if batch.epsilon > 0.0 else 0.0
        record = batch.intensity(self.regulariser) > 0.0
        done = batch.bounded(
            point=self.attack(batch) if alpha < 1.0 else None,
            clean=alpha < 1.0,
            bounds=alpha > 0.0 or record,
            batch_statistics=batch.model.training,
            record=record,
        )
        return batch.regularised(self._loss(done, batch.labels, alpha), self.regulariser, done)

    def _loss(self, done: TrainingPass, labels: Tensor, alpha: float) -> Loss:
        """Take the loss of what was computed; the errors of both parts are scalars."""
        scalars = {}
        if done.margins is not None:
            scalars["verified_error"] = verified_error(done.margins.detach(), labels)
        if done.logits is None:
            return Loss(cross_entropy(done.computed_margins, labels), scalars)
        scalars["attacked_error"] = error(done.logits.detach(), labels)
        if alpha == 0.0:
            return Loss(cross_entropy(done.logits, labels), scalars)
        return Loss(self.joined(done.logits, done.computed_margins, labels, alpha), scalars)
