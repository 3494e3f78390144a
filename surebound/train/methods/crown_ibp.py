"""CROWN-IBP: interval bounds inside, one linear backward pass for the margins (Zhang et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surebound.attack.inner import box
from surebound.bounds.training.dual import bound_margins, fused_loss, relaxed_from, values_to_keep
from surebound.bounds.training.engine import TrainingPass
from surebound.errors import ConfigError
from surebound.interval import Interval
from surebound.train.losses import cross_entropy, verified_error
from surebound.train.methods.base import Batch, Loss, Method


@dataclass(frozen=True)
class CROWNIBP(Method):
    """kappa · CE(z) + (1 - kappa) · CE(beta · linear margins + (1 - beta) · interval margins).

    beta goes from `beta_start` to `beta_final` as the radius goes from 0 to eps_train. With `fused` the linear part is
    one bound of the cross-entropy itself instead of K - 1 margins (Xu et al. 2020), mixed as a loss; its cost does not
    grow with the number of classes. Where a weight is 0 its pass is not computed: at beta = 0 this is IBP.

    Property: what it drives down is an upper bound of the robust error, up to the rounding of training arithmetic.
    Reference: Zhang et al. 2020, "Towards stable and efficient training of verifiably robust neural networks", eq. 13.
    """

    name: ClassVar[str] = "crown-ibp"
    bound_based: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    beta_start: float = 1.0
    beta_final: float = 0.0
    fused: bool = True

    def __post_init__(self) -> None:
        for key in ("beta_start", "beta_final"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(f"{key} must be between 0 and 1, got {getattr(self, key)}")

    def beta(self, epsilon: float, eps_train: float) -> float:
        """Return the weight of the linear bound at a radius."""
        done = min(1.0, epsilon / eps_train) if eps_train > 0 else 1.0
        return self.beta_start + (self.beta_final - self.beta_start) * done

    def loss(self, batch: Batch) -> Loss:
        """Return the mixed loss; the passes whose weight is 0 are not computed."""
        beta = self.beta(batch.epsilon, batch.eps_train) if batch.epsilon > 0 else 0.0
        linear = beta > 0.0 and batch.kappa < 1.0
        done = batch.bounded(
            clean=batch.kappa > 0.0,
            bounds=batch.kappa < 1.0,
            batch_statistics=batch.model.training,
            keep=values_to_keep(batch.program) if linear else (),
        )
        robust, scalars = None, {}
        if done.margins is not None:
            robust, margins = self._robust(batch, done, done.margins, beta if linear else 0.0)
            scalars["verified_error"] = verified_error(margins, batch.labels)
        return batch.mixed(done.logits if batch.kappa > 0.0 else None, robust, scalars)

    def _robust(self, batch: Batch, done: TrainingPass, interval: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """Return the loss of the bounds, and the best margins (B, K) known, without gradients."""
        if beta == 0.0:
            return cross_entropy(interval, batch.labels), interval.detach()
        region = Interval(*box(batch.images, batch.epsilon, batch.clip))
        relaxed = relaxed_from(batch.program, done, region)
        if self.fused:
            value = beta * fused_loss(relaxed, interval, batch.labels).mean()
            rest = (1.0 - beta) * cross_entropy(interval, batch.labels) if beta < 1.0 else 0.0
            return value + rest, interval.detach()
        linear = bound_margins(relaxed, batch.labels)
        mixed = linear if beta == 1.0 else torch.lerp(interval, linear, beta)
        return cross_entropy(mixed, batch.labels), torch.fmin(interval, linear).detach()
