"""ReLU stability: adversarial training that keeps ReLUs from changing sign in the ball (Xiao et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surebound.attack.inner import box
from surebound.bounds.training.domains import hybrid_bounds
from surebound.bounds.training.verifier import relu_inputs
from surebound.errors import ConfigError
from surebound.interval import Interval
from surebound.train.losses import cross_entropy, error
from surebound.train.methods.base import Batch, Loss, Method
from surebound.train.methods.inner import InnerAttack


@dataclass(frozen=True)
class Xiao(Method):
    """CE(attacked logits) + weight · sum over all ReLUs of -tanh(1 + l u), mean over the batch.

    l and u bound a ReLU's input over the ball: by intervals, or, with `bounds = "improved"`, by zonotopes that stable
    ReLUs hand on, which are tighter from the second activation on and cost as many forward passes as there are inputs.
    The plan's `l1` is the authors' regulariser of the weights (theirs counts a convolution's weights once for every
    position). Batch normalisation uses the statistics of the attacked batch in both parts. The plan's kappa plays no
    part.

    Property: what it lowers is no bound of the robust error; it makes the network cheap for a complete search, which
    has to split unstable ReLUs only. `sb.compact(..., prune=sb.bounds.Pruning(...))` removes small weights and ReLUs
    that are hardly ever on.
    Reference: Xiao et al. 2019, "Training for faster adversarial robustness verification via inducing ReLU stability",
    section 4 (weight sparsity, ReLU stability loss), appendix (improved interval arithmetic).
    """

    name: ClassVar[str] = "xiao"
    bound_based: ClassVar[bool] = True
    robust: ClassVar[bool] = True

    weight: float = 1e-4
    bounds: str = "interval"
    attack: InnerAttack = InnerAttack(steps=8, step_size=0.3)

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ConfigError(f"weight={self.weight}; give 0 or more")
        if self.bounds not in ("interval", "improved"):
            raise ConfigError(f"bounds={self.bounds!r}; give interval or improved")

    def loss(self, batch: Batch) -> Loss:
        """Return the loss of the attacked images, and the stability of the ReLUs over the balls."""
        attacked, names = self.attack(batch), relu_inputs(batch.program)
        wanted = self.weight > 0 and batch.epsilon > 0
        done = batch.bounded(
            point=attacked,
            bounds=wanted,
            batch_statistics=batch.model.training,
            keep=names if wanted else (),
        )
        if done.logits is None:  # asked for above; for the type checker
            raise ConfigError("a pass without outputs")
        value = cross_entropy(done.logits, batch.labels)
        scalars = {"attacked_error": error(done.logits.detach(), batch.labels)}
        if wanted:
            kept = dict(done.kept)
            if self.bounds == "improved":
                region = Interval(*box(batch.images, batch.epsilon, batch.clip))
                kept = hybrid_bounds(batch.program, region, names, done.norms)
            value = value + self.weight * instability(kept.values())
            scalars["unstable"] = unstable_share(kept.values()).detach()
        return Loss(value, scalars)


def instability(bounds: Iterable[Interval]) -> Tensor:
    """Sum -tanh(1 + l u) over the units of all values, mean over the batch (Xiao et al. 2019, section 4.2): 0-d."""
    terms = [-torch.tanh(1.0 + b.lower * b.upper).flatten(1).sum(1).mean() for b in bounds]
    return torch.stack(terms).sum()


def unstable_share(bounds: Iterable[Interval]) -> Tensor:
    """Return the share of units whose bounds have both signs, 0-d."""
    signs = [((b.lower < 0) & (b.upper > 0)).flatten() for b in bounds]
    return torch.cat(signs).to(torch.get_default_dtype()).mean()
