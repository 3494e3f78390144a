"""MixTrain: symbolic intervals of a few examples of a batch, weighted by its accuracy (Wang et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from surebound.attack.inner import box
from surebound.bounds.training.domains import symbolic_margins
from surebound.errors import ConfigError
from surebound.interval import Interval
from surebound.train.losses import cross_entropy, error, verified_error
from surebound.train.methods.base import Batch, Loss, Method


@dataclass(frozen=True)
class MixTrain(Method):
    """(1 - weight) · CE(z) of the batch + weight · CE(margins by symbolic intervals) of `samples` of its examples.

    The examples are drawn anew at every step (stochastic robust approximation). The weight is `alpha` while the share
    of misclassified images in the batch is at most `tolerated`, and alpha · tolerated / share above: accuracy comes
    first, then robustness (dynamic mixed training). It is a function of the batch alone, so that runs resume to the
    same bits; the authors adapt theirs between epochs. The plan's kappa plays no part.

    Property: an unbiased sample of an upper bound of the robust error, up to the rounding of training arithmetic; the
    same bound verifies (`method="symbolic"`). Batch normalisation uses its running statistics.
    Reference: Wang et al. 2018, "MixTrain: scalable training of verifiably robust neural networks": stochastic robust
    approximation and dynamic mixed training; Wang et al. 2018 (Neurify) for the bounds.
    """

    name: ClassVar[str] = "mixtrain"
    bound_based: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    samples: int = 5
    alpha: float = 0.8
    tolerated: float = 0.05

    def __post_init__(self) -> None:
        if self.samples < 1 or not (0 < self.alpha <= 1 and 0 < self.tolerated <= 1):
            raise ConfigError(
                "MixTrain needs samples >= 1, 0 < alpha <= 1 and 0 < tolerated <= 1, got "
                f"samples={self.samples}, alpha={self.alpha}, tolerated={self.tolerated}"
            )

    def loss(self, batch: Batch) -> Loss:
        """Return the mixed loss; at radius 0 the clean one."""
        logits = batch.model(batch.images)  # (B, K)
        wrong, clean = error(logits.detach(), batch.labels), cross_entropy(logits, batch.labels)
        if batch.epsilon == 0.0:
            return Loss(clean, {"clean_error": wrong})
        weight = self.alpha * (self.tolerated / wrong.clamp_min(self.tolerated))  # ()
        draw = torch.randperm(len(batch.labels), generator=batch.generator, device=batch.generator.device)
        chosen = draw[: self.samples].to(batch.labels.device)
        region = Interval(*box(batch.images[chosen], batch.epsilon, batch.clip))
        margins = symbolic_margins(batch.program, region, batch.labels[chosen])
        robust = cross_entropy(margins, batch.labels[chosen])
        scalars = {"clean_error": wrong, "robust_weight": weight}
        scalars["verified_error"] = verified_error(margins.detach(), batch.labels[chosen])
        return Loss((1.0 - weight) * clean + weight * robust, scalars)
