"""Averages of the weights along a run, which often generalise better than the last ones.

Izmailov et al. 2018, "Averaging weights leads to wider optima and better generalization": the plain mean (SWA) or, with
a decay, an exponential one (EMA). Statistics of batch normalisation belong to one set of weights and are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from surebound.errors import ConfigError
from surebound.graph.fit import evaluating


@dataclass(frozen=True)
class Averaging:
    """Average the weights from step `start` on, one sample every `every` steps.

    decay: of the exponential average; None: the plain mean. batches: training batches, clean ones, from which the
    running statistics of batch normalisation are recomputed.
    """

    start: int = 0
    decay: float | None = None
    every: int = 1
    batches: int = 100

    def __post_init__(self) -> None:
        if self.start < 0 or self.every < 1 or self.batches < 1:
            raise ConfigError(
                "averaging needs start >= 0, every >= 1 and batches >= 1, got "
                f"start={self.start}, every={self.every}, batches={self.batches}"
            )
        if self.decay is not None and not 0 < self.decay < 1:
            raise ConfigError(f"the decay of an average must be between 0 and 1, got {self.decay}")


class WeightAverage:
    """The average of a network's parameters so far; `count` samples are in it."""

    def __init__(self, settings: Averaging, parameters: Sequence[Tensor]) -> None:
        self.settings, self.parameters = settings, list(parameters)
        self.mean = [p.detach().clone() for p in parameters]
        self.count = 0

    def update(self, step: int) -> None:
        """Take in the weights after `step` steps, if one is due."""
        since = step - self.settings.start
        if since <= 0 or since % self.settings.every:
            return
        self.count += 1
        share = 1.0 / self.count  # an exponential average begins as a plain one
        if self.settings.decay is not None:
            share = max(share, 1.0 - self.settings.decay)
        with torch.no_grad():
            for mean, parameter in zip(self.mean, self.parameters, strict=True):
                mean.lerp_(parameter, share)

    def apply(self, model: nn.Module, batches: Iterable[Tensor]) -> None:
        """Set the network's parameters to the average and its running statistics to those of the batches (B, ...)."""
        with torch.no_grad():
            for mean, parameter in zip(self.mean, self.parameters, strict=True):
                parameter.copy_(mean)
        recompute_statistics(model, batches)

    @contextmanager
    def applied(self, model: nn.Module, batches: Iterable[Tensor]) -> Iterator[None]:
        """Apply the average inside; leave the network as it was."""
        before = {name: value.clone() for name, value in model.state_dict().items()}
        try:
            self.apply(model, batches)
            yield
        finally:
            model.load_state_dict(before)


def recompute_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Set the running statistics of batch normalisation to their mean over batches (B, ...) of training inputs.

    Layers in evaluation mode keep theirs. All others are in evaluation mode meanwhile: none draws from a generator.
    """
    known = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in known if norm.training and norm.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    with evaluating(model), torch.no_grad():
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over the batches
            norm.train()
        try:
            for images in batches:
                model(images)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
