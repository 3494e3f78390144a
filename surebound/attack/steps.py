"""How far to go along a gradient: Adam or sign steps, and a step size that decays.

The paper's appendix on where PGD misses what a complete solver finds names one reason: with a step that stays
large, projection makes the iterate bounce between the faces of the box and never hit its corner. So the step
decays.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.attack.options import is_positive
from surebound.attack.rows import AttackRows
from surebound.errors import ConfigError


@dataclass(frozen=True)
class StepDecay:
    """Multiply the step size by ``factor`` whenever a share ``at`` of the steps is done; ``at=()``: never.

    >>> [StepDecay()(t, 200) for t in (0, 99, 100, 150)] == [1.0, 1.0, 0.1, 0.1 * 0.1]
    True
    """

    factor: float = 0.1
    at: tuple[float, ...] = (0.5, 0.75)

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1 or not all(0 <= share <= 1 for share in self.at):
            raise ConfigError(
                f"StepDecay(factor={self.factor!r}, at={self.at!r}): "
                "the factor must lie in (0, 1], the shares in [0, 1]"
            )

    def __call__(self, t: int, steps: int) -> float:
        """Return the factor of the step size at step ``t`` of ``steps``."""
        return math.prod(self.factor for share in self.at if t >= share * steps)


class StepRule(abc.ABC):
    """Turns gradients into moves uphill; its memory is in ``rows.state``, so that it drops with its rows."""

    @abc.abstractmethod
    def begin(self, rows: AttackRows) -> None:
        """Set up the memory of every row."""

    @abc.abstractmethod
    def advance(self, rows: AttackRows, origin: Tensor, gradient: Tensor, t: int, scale: float) -> Tensor:
        """Take step ``t`` from ``origin`` (R, ...), with the step size multiplied by ``scale``."""


@dataclass(frozen=True)
class Adam(StepRule):
    """Adam (Kingma and Ba 2015), the paper's choice; ``lr`` in input units, or half-widths of the box."""

    lr: float = 0.1
    relative: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    damping: float = 1e-8

    def __post_init__(self) -> None:
        _check_rate("Adam", self.lr)
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.damping > 0):
            raise ConfigError(f"{self}: the betas must lie in [0, 1) and the damping must be positive")

    def begin(self, rows: AttackRows) -> None:
        rows.state["mean"] = torch.zeros_like(rows.x)
        rows.state["square"] = torch.zeros_like(rows.x)

    def advance(self, rows: AttackRows, origin: Tensor, gradient: Tensor, t: int, scale: float) -> Tensor:
        mean, square = rows.state["mean"], rows.state["square"]
        mean.lerp_(gradient, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        # Bias corrections as in the paper's algorithm 1, folded into the two scalars.
        root = math.sqrt(1 - self.beta2 ** (t + 1))
        rate = self.lr * scale * root / (1 - self.beta1 ** (t + 1))
        size = square.sqrt().add_(self.damping * root)
        if self.relative:
            return origin.addcmul(mean / size, rows.half_width, value=rate)
        return origin.addcdiv(mean, size, value=rate)


@dataclass(frozen=True)
class Sign(StepRule):
    """Steps of one length in every coordinate (Madry et al. 2018); ``lr`` in half-widths of the box."""

    lr: float = 0.25
    relative: bool = True

    def __post_init__(self) -> None:
        _check_rate("Sign", self.lr)

    def begin(self, rows: AttackRows) -> None:
        """Remember nothing."""

    def advance(self, rows: AttackRows, origin: Tensor, gradient: Tensor, t: int, scale: float) -> Tensor:
        rate = self.lr * scale
        if self.relative:
            return origin.addcmul(gradient.sign(), rows.half_width, value=rate)
        return origin.add(gradient.sign(), alpha=rate)


def _check_rate(name: str, lr: float) -> None:
    if not is_positive(lr):
        raise ConfigError(f"{name}(lr={lr!r}): the step size must be a positive number")
