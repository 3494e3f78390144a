"""The dual network of Wong & Kolter (2018), scaled by random projections (Wong et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from surebound.attack.inner import box
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.training.dual import bound_margins, values_to_keep
from surebound.bounds.training.projections.estimate import Projections
from surebound.bounds.training.projections.sketch import estimated_margins
from surebound.errors import ConfigError
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.train.losses import cross_entropy, verified_error
from surebound.train.methods.base import Batch, Loss, Method


@dataclass(frozen=True)
class Wong(Method):
    """kappa · CE(z) + (1 - kappa) · CE(dual margins): every layer's bounds by the dual of the layers before it.

    `projections` random projections estimate the l1 norms and the ReLU's bias terms inside; the last pass, for the
    margins, is exact given those. 0: everything exact, by as many backward passes as there are unstable neurons.
    `memory` is how many bytes of coefficients or columns are held at a time; it changes the cost, not the loss.

    Property: with projections = 0, an upper bound of the robust error is driven down, up to the rounding of training
    arithmetic; with projections, an estimate of it, which proves nothing (`Estimate`).
    Never looser than interval bounds, which are intersected with. Batch normalisation uses its running statistics.
    Reference: Wong & Kolter 2018, theorem 1 and algorithm 1; Wong et al. 2018, section 3.2 and algorithm 2.
    """

    name: ClassVar[str] = "wong"
    bound_based: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    projections: int = 50
    memory: int = 1 << 29

    def __post_init__(self) -> None:
        if self.projections != 0 and self.projections < 3:
            raise ConfigError(
                f"projections={self.projections}: a median needs at least 3, and 0 means none (exact norms)"
            )
        if self.memory <= 0:
            raise ConfigError(f"memory={self.memory}; give a positive number of bytes")

    def loss(self, batch: Batch) -> Loss:
        """Return the mixed loss; the pass whose weight is 0 is not computed."""
        logits, robust, scalars = batch.clean_logits(), None, {}
        if batch.kappa < 1.0:
            margins = self._margins(batch)
            robust = cross_entropy(margins, batch.labels)
            key = "estimated_error" if self.projections and batch.epsilon > 0 else "verified_error"
            scalars[key] = verified_error(margins.detach(), batch.labels)
        return batch.mixed(logits, robust, scalars)

    def _margins(self, batch: Batch) -> Tensor:
        """Return margins (B, K) to minimise: bounds, or estimates of them."""
        region = Interval(*box(batch.images, batch.epsilon, batch.clip))
        if self.projections == 0:
            relaxed = relax(batch.program, region, Soundness.NONE, own=True, slopes="upper", memory=self.memory)
            return bound_margins(relaxed, batch.labels)
        done = batch.bounded(clean=False, keep=values_to_keep(batch.program))
        if batch.epsilon == 0.0 and done.margins is not None:  # a point needs no estimate
            return done.margins
        chosen = Projections(self.projections, batch.generator, self.memory)
        return estimated_margins(batch.program, done, region, batch.labels, chosen).for_training
