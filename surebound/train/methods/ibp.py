"""Interval bound propagation training, the paper's method (section 3, equation 12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from surebound.attack.inner import box
from surebound.bounds.training.engine import TrainingPass, training_pass
from surebound.errors import ConfigError
from surebound.train.losses import LOSSES, cross_entropy, error, verified_error
from surebound.train.methods.base import Batch, Loss, Method
from surebound.train.regularise import BoundRegulariser


@dataclass(frozen=True)
class IBP(Method):
    """kappa · CE(z) + (1 - kappa) · loss(worst-case margins), plus an optional regulariser of the bounds.

    Property: what it drives down is an upper bound of the robust error, up to the rounding of training arithmetic.
    `elide` merges the last linear layer with the specification; `objective` and `elide` are the paper's ablations.
    """

    name: ClassVar[str] = "ibp"
    bound_based: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    objective: str = "cross_entropy"
    elide: bool = True
    regulariser: BoundRegulariser | None = None

    def __post_init__(self) -> None:
        if self.objective not in LOSSES:
            raise ConfigError(f"unknown objective {self.objective!r}: use one of {', '.join(LOSSES)}")

    def loss(self, batch: Batch) -> Loss:
        """The mixed loss; the pass whose weight is 0 is not computed."""
        intensity = self.regulariser.intensity(batch.epsilon, batch.eps_train) if self.regulariser else 0.0
        done = training_pass(
            batch.program,
            batch.images,
            batch.labels,
            batch.epsilon,
            clip=batch.clip,
            clean=batch.kappa > 0.0,
            bounds=batch.kappa < 1.0 or intensity > 0.0,
            elide=self.elide,
            batch_statistics=batch.model.training,
            record=intensity > 0.0,
        )
        value, scalars = self._mix(done, batch)
        if self.regulariser is not None and intensity > 0.0:
            penalty = self.regulariser(done.pre_activations, input_radius(batch))
            scalars["regulariser"] = penalty.detach()
            value = value + intensity * penalty
        return Loss(value, scalars)

    def _mix(self, done: TrainingPass, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        terms: list[Tensor] = []
        scalars: dict[str, Tensor] = {}
        if done.logits is not None and batch.kappa > 0.0:
            terms.append(batch.kappa * cross_entropy(done.logits, batch.labels))
            scalars["clean_error"] = error(done.logits.detach(), batch.labels)
        if done.margins is not None and batch.kappa < 1.0:
            terms.append((1.0 - batch.kappa) * LOSSES[self.objective](done.margins, batch.labels))
            scalars["verified_error"] = verified_error(done.margins.detach(), batch.labels)
        return sum(terms[1:], terms[0]), scalars


def input_radius(batch: Batch) -> Tensor:
    """The mean radius (0-d) of the input boxes, intersected with the clip range."""
    lower, upper = box(batch.images, batch.epsilon, batch.clip)
    return (upper - lower).mean() / 2.0
