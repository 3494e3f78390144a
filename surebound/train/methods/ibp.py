"""Interval bound propagation training, the paper's method (section 3, equation 12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from surebound.errors import ConfigError
from surebound.train.losses import LOSSES, verified_error
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
    balls: ClassVar[bool] = True

    objective: str = "cross_entropy"
    elide: bool = True
    regulariser: BoundRegulariser | None = None

    def __post_init__(self) -> None:
        if self.objective not in LOSSES:
            raise ConfigError(f"unknown objective {self.objective!r}: use one of {', '.join(LOSSES)}")

    def loss(self, batch: Batch) -> Loss:
        """Return the mixed loss; the pass whose weight is 0 is not computed."""
        record = batch.intensity(self.regulariser) > 0.0
        done = batch.bounded(
            clean=batch.kappa > 0.0,
            bounds=batch.kappa < 1.0 or record,
            elide=self.elide,
            batch_statistics=batch.model.training,
            record=record,
        )
        robust, scalars = None, {}
        if done.margins is not None and batch.kappa < 1.0:
            robust = LOSSES[self.objective](done.margins, batch.labels)
            scalars["verified_error"] = verified_error(done.margins.detach(), batch.labels)
        loss = batch.mixed(done.logits if batch.kappa > 0.0 else None, robust, scalars)
        return batch.regularised(loss, self.regulariser, done)
