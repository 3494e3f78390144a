"""Batch normalisation over several processes: the statistics of the whole batch, not of each process's part.

Mean and variance are averaged over the processes in the forward pass, and their gradients in the backward pass, so that
several processes compute what one does with the whole batch, to rounding: three short messages for every BatchNorm in
the forward pass, two in the backward pass.
Every process has to meet the same layers in the same order, as it does when all train one network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import batch_norm
from torch.overrides import TorchFunctionMode

from surebound.bounds.training.engine import Statistics
from surebound.train.distributed import Group


@dataclass(frozen=True)
class GlobalStatistics:
    """Statistics of batches that several processes share: called with a part, it gives those of the whole."""

    group: Group

    def __call__(self, part: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return mean (C,), biased variance (C,) and values per channel of all processes' parts (B, C, ...).

        The variance is that about the common mean: no difference of large numbers. Differentiable in the part.
        """
        others = [axis for axis in range(part.dim()) if axis != 1]
        local = math.prod(part.shape[axis] for axis in others)
        count = int(self.group.sum_(torch.tensor(local, dtype=torch.int64)))
        mean = self._sum(part.sum(others)) / count
        centred = part - mean.reshape(-1, *[1] * (part.dim() - 2))
        return mean, self._sum(centred.square().sum(others)) / count, count

    def _sum(self, values: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(values, self.group)  # type: ignore[no-untyped-call]
        return total


class _Sum(torch.autograd.Function):
    """The sum over processes; so is the gradient, as every process's loss depends on every process's values."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.sum_(values.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.group.sum_(gradients[0].clone()), None


class _Normalise(TorchFunctionMode):
    """Gives the BatchNorm layers of a network that is called in training mode the statistics of the whole batch."""

    def __init__(self, statistics: Statistics) -> None:
        super().__init__()
        self.statistics = statistics

    def __torch_function__(
        self, call: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if call is batch_norm and named["training"]:
            return self._batch_norm(*args, **named)
        return call(*args, **named)

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> Tensor:
        """Normalise x (B, C, ...) and update the running statistics as nn.BatchNorm does."""
        mean, var, count = self.statistics(x)
        with torch.no_grad():
            if running_mean is not None and running_var is not None:
                running_mean.lerp_(mean, momentum)
                running_var.lerp_(var * (count / max(1, count - 1)), momentum)
        scale = (var + eps).rsqrt() if weight is None else weight * (var + eps).rsqrt()  # (C,)
        shift = -mean * scale if bias is None else bias - mean * scale
        every = (1, -1, *[1] * (x.dim() - 2))
        return torch.addcmul(shift.reshape(every), x, scale.reshape(every))


@contextmanager
def synchronised(statistics: Statistics | None) -> Iterator[None]:
    """Normalise what networks compute inside by statistics of the whole batch; None: by those of each part."""
    if statistics is None:
        yield
        return
    with _Normalise(statistics):
        yield
