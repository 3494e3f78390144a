"""The one interface of a training method: a batch in, a loss and named scalars out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surebound.attack.inner import box
from surebound.bounds.training.engine import Statistics, TrainingPass, training_pass
from surebound.errors import ConfigError
from surebound.graph import Program
from surebound.train.losses import cross_entropy, error
from surebound.train.regularise import BoundRegulariser


@dataclass(frozen=True, eq=False)
class Batch:
    """Everything a method may look at in one step."""

    model: nn.Module
    images: Tensor  # (B, C, H, W) or (B, ...), in the clip range
    labels: Tensor  # (B,)
    epsilon: float  # the radius of this step
    eps_train: float  # the radius the ramp leads to
    kappa: float  # weight of the clean loss in this step
    step: int
    generator: torch.Generator  # for whatever the method draws; seeded by run and step
    clip: tuple[float, float] | None = (0.0, 1.0)  # valid inputs, per coordinate
    norm: int | None = None  # 1 or 2: of the balls, for methods with `balls = True`; None: l-infinity
    traced: Program | None = None
    statistics: Statistics | None = None  # of the whole batch, where processes share it (train/synchronise.py)
    partner: nn.Module | None = None  # what the method trains jointly with the network (`Method.partner`)

    @property
    def program(self) -> Program:
        """The traced network; there for methods with `bound_based = True`."""
        if self.traced is None:
            raise ConfigError(
                "the method asks for the traced program but does not declare it: set `bound_based = True` on its class"
            )
        return self.traced

    def bounded(self, **options: Any) -> TrainingPass:
        """Bound the network over the batch's boxes; options are those of ``training_pass``."""
        options = {"clip": self.clip, "norm": self.norm, "statistics": self.statistics, **options}
        return training_pass(self.program, self.images, self.labels, self.epsilon, **options)

    def regularised(self, loss: Loss, regulariser: BoundRegulariser | None, done: TrainingPass) -> Loss:
        """Add the regulariser's penalty on the bounds of a pass that recorded them; without one, nothing."""
        weight = self.intensity(regulariser)
        if regulariser is None or weight <= 0.0:
            return loss
        lower, upper = box(self.images, self.epsilon, self.clip)
        penalty = regulariser(done.pre_activations, (upper - lower).mean() / 2.0)
        return Loss(loss.value + weight * penalty, {**loss.scalars, "regulariser": penalty.detach()})

    def intensity(self, regulariser: BoundRegulariser | None) -> float:
        """Weigh a regulariser at the radius of this step; without one, 0."""
        return regulariser.intensity(self.epsilon, self.eps_train) if regulariser is not None else 0.0

    def clean_logits(self) -> Tensor | None:
        """Run the network on the images, (B, K): if the clean loss counts, or if batch normalisation has to learn."""
        learns = any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in self.model.modules())
        return self.model(self.images) if self.kappa > 0.0 or learns else None

    def mixed(self, logits: Tensor | None, robust: Tensor | None, scalars: dict[str, Tensor]) -> Loss:
        """Return kappa · CE(logits) + (1 - kappa) · robust, of what was computed; the clean error is a scalar."""
        terms: list[Tensor] = []
        if logits is not None:
            terms.append(self.kappa * cross_entropy(logits, self.labels))
            scalars = {"clean_error": error(logits.detach(), self.labels), **scalars}
        if robust is not None:
            terms.append((1.0 - self.kappa) * robust)
        return Loss(sum(terms[1:], terms[0]), scalars)


@dataclass(frozen=True, eq=False)
class Loss:
    """What a step minimises, and detached 0-d tensors worth recording."""

    value: Tensor  # ()
    scalars: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Method(ABC):
    """A way to train. Subclasses are frozen dataclasses; their fields are what a configuration may set."""

    name: ClassVar[str]
    bound_based: ClassVar[bool] = False  # wants `Batch.program`
    robust: ClassVar[bool] = False  # has a use for a radius: eps_train must be positive
    joint: ClassVar[bool] = False  # trains a partner of the network
    balls: ClassVar[bool] = False  # knows balls of the norms l1 and l2: what it bounds is `Batch.bounded` alone

    @abstractmethod
    def loss(self, batch: Batch) -> Loss:
        """Return the loss of one batch, differentiable in the model's parameters."""

    def partner(self, program: Program) -> nn.Module | None:
        """Return what is trained with the network and is no part of it, where `joint = True`; draw no numbers."""
        return None


def check_norm(method: Method, norm: str) -> None:
    """Refuse to train by a method against balls of a norm that it does not know."""
    if norm != "linf" and method.robust and not method.balls:
        raise ConfigError(
            f"the method {method.name!r} trains against l-infinity balls, not those of {norm}; give the method 'ibp', "
            "or the norm 'linf'"
        )
