"""DiffAI: the loss of hybrid zonotopes, mixed with the clean one (Mirman et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from surebound.attack.inner import box
from surebound.bounds.forward.hybrid import check_hybrid
from surebound.bounds.training.domains import hybrid_margins
from surebound.errors import ConfigError
from surebound.interval import Interval
from surebound.train.losses import LOSSES, verified_error
from surebound.train.methods.base import Batch, Loss, Method


@dataclass(frozen=True)
class Mirman(Method):
    """kappa · CE(z) + (1 - kappa) · loss(margins of hybrid zonotopes).

    `transformer` says what an unstable ReLU does with the shared error terms: `box` (zBox), `diag` (zDiag) or `smooth`
    (zSmooth). `correlated` is how many inputs have such a term, those with the largest upper ends: time and memory grow
    with it; 0 is interval bounds without elision. `objective` is their softplus, or any other loss of margins.

    Property: what it drives down is an upper bound of the robust error, up to the rounding of training arithmetic; the
    same bound verifies (`surebound.bounds.Hybrid`). Never looser than interval bounds inside the network, which are
    intersected with. Batch normalisation uses its running statistics.
    Reference: Mirman et al. 2018, "Differentiable abstract interpretation for provably robust neural networks": the
    hybrid zonotope domain, its ReLU transformers and the combined loss.
    """

    name: ClassVar[str] = "mirman"
    bound_based: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    transformer: str = "smooth"
    correlated: int = 32
    objective: str = "softplus"

    def __post_init__(self) -> None:
        check_hybrid(self.transformer, self.correlated, ConfigError)
        if self.objective not in LOSSES:
            raise ConfigError(f"unknown objective {self.objective!r}: use one of {', '.join(LOSSES)}")

    def loss(self, batch: Batch) -> Loss:
        """Return the mixed loss; the pass whose weight is 0 is not computed."""
        logits, robust, scalars = batch.clean_logits(), None, {}
        if batch.kappa < 1.0:
            region = Interval(*box(batch.images, batch.epsilon, batch.clip))
            margins = hybrid_margins(batch.program, region, batch.labels, self.transformer, self.correlated)
            robust = LOSSES[self.objective](margins, batch.labels)
            scalars["verified_error"] = verified_error(margins.detach(), batch.labels)
        return batch.mixed(logits, robust, scalars)
