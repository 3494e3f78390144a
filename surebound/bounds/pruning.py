"""What `compact` may leave out beyond what is proved off: small weights, and ReLUs that hardly any input turns on.

It changes the network, so what it changes is measured; what is proved of the result holds of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surebound.bounds.interval import propagate
from surebound.errors import InputError
from surebound.graph import Node, Program
from surebound.interval import Interval
from surebound.numerics import Soundness


@dataclass(frozen=True, eq=False)
class Pruning:
    """Remove weights smaller than ``weights`` and channels that at most the share ``relus`` of ``inputs`` turns on.

    reference: Xiao et al. 2019, section 4 (thresholds of 1e-3 and 0.1 in the runs that they published; they also make
               ReLUs linear that are nearly always on, and count attacked training images, which may be given here)
    """

    inputs: Tensor  # (N, ...): images, clean or attacked, to count and to measure on
    weights: float = 1e-3  # heuristic: no proof rests on it
    relus: float = 0.1

    def __post_init__(self) -> None:
        if not self.weights >= 0 or not 0 <= self.relus < 1:
            raise InputError(f"weights={self.weights}, relus={self.relus}; give weights >= 0 and 0 <= relus < 1")
        if len(self.inputs) == 0:
            raise InputError("pruning needs inputs to count on and to measure its change; none were given")


@dataclass(frozen=True)
class Change:
    """What pruning did to the outputs on ``inputs`` inputs."""

    inputs: int
    predictions: float  # the share of inputs whose largest output is another one
    largest: float  # the largest difference of an output


def rare_channels(program: Program, pruning: Pruning) -> dict[str, Tensor]:
    """Find the channels (C,) of every value (B, C, ...) of which a unit is positive at few of the inputs only."""
    found: dict[str, Tensor] = {}

    def observe(node: Node, bounds: Any) -> None:
        if isinstance(bounds, Interval) and len(bounds.shape) > 1:
            on = (bounds.upper > 0).flatten(2).any(2) if len(bounds.shape) > 2 else bounds.upper > 0  # (B, C)
            found[node.name] = on.double().mean(0) <= pruning.relus

    propagate(program, Interval(pruning.inputs, pruning.inputs), Soundness.NONE, observe=observe)
    return found


def change_of(before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor], inputs: Tensor) -> Change:
    """Measure how much two networks differ on inputs (N, ...)."""
    with torch.no_grad():
        old, new = before(inputs), after(inputs)  # (N, K)
    other = old.argmax(1) != new.argmax(1)
    return Change(len(inputs), float(other.double().mean()), float((old - new).abs().max()))
