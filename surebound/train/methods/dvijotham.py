"""Predictor-verifier training: a second network chooses the dual variables of the bound (Dvijotham et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from surebound.attack.inner import box
from surebound.bounds.training.dual import bound_margins, values_to_keep
from surebound.bounds.training.verifier import DualVerifier, verified_by
from surebound.errors import ConfigError
from surebound.graph import Program
from surebound.interval import Interval
from surebound.train.losses import LOSSES, verified_error
from surebound.train.methods.base import Batch, Loss, Method


@dataclass(frozen=True)
class Dvijotham(Method):
    """kappa · CE(z) + (1 - kappa) · loss(dual margins), minimised over the network and its verifier at once.

    Every activation keeps interval bounds. The `linear` verifier has a scale and a shift for every ReLU and either sign
    of the coefficient that arrives there, and makes its dual variable of them and of the ReLU's chord; it is trained by
    the same optimiser and left behind. `constant`: all dual variables 0, which is IBP.

    Property: any dual variables bound, so what it drives down is an upper bound of the robust error, up to the rounding
    of training arithmetic. To verify, the dual variables are optimised anew (`method="dvijotham"`).
    Reference: Dvijotham et al. 2018, "Training verified learners with learned verifiers": dual bound and joint loss;
    "A dual approach to scalable verification of deep networks" for the dual.
    """

    name: ClassVar[str] = "dvijotham"
    bound_based: ClassVar[bool] = True
    robust: ClassVar[bool] = True
    joint: ClassVar[bool] = True

    verifier: str = "linear"
    objective: str = "cross_entropy"

    def __post_init__(self) -> None:
        if self.verifier not in ("linear", "constant"):
            raise ConfigError(f"verifier={self.verifier!r}; give linear or constant")
        if self.objective not in LOSSES:
            raise ConfigError(f"unknown objective {self.objective!r}: use one of {', '.join(LOSSES)}")

    def partner(self, program: Program) -> nn.Module | None:
        """Return the verifier."""
        return DualVerifier(program) if self.verifier == "linear" else None

    def loss(self, batch: Batch) -> Loss:
        """Return the mixed loss; the pass whose weight is 0 is not computed."""
        bounds = batch.kappa < 1.0
        done = batch.bounded(
            clean=batch.kappa > 0.0,
            bounds=bounds,
            batch_statistics=batch.model.training,
            keep=values_to_keep(batch.program) if bounds else (),
        )
        robust, scalars = None, {}
        if bounds:
            region = Interval(*box(batch.images, batch.epsilon, batch.clip))
            verifier = batch.partner if isinstance(batch.partner, DualVerifier) else None
            margins = bound_margins(verified_by(batch.program, done, region, verifier), batch.labels)  # (B, K)
            robust = LOSSES[self.objective](margins, batch.labels)
            scalars["verified_error"] = verified_error(margins.detach(), batch.labels)
        return batch.mixed(done.logits if batch.kappa > 0.0 else None, robust, scalars)
