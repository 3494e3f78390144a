"""Simultaneous perturbation: an attack that asks for no gradient."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from surebound.attack.base import Attack
from surebound.attack.objective import LOSSES
from surebound.attack.options import is_count, is_positive
from surebound.attack.rows import AttackRows
from surebound.attack.starts import STARTS
from surebound.attack.steps import Adam, StepDecay, StepRule
from surebound.errors import ConfigError


@dataclass(frozen=True)
class SPSA(Attack):
    """Estimate the gradient from differences along random signs, so that a masked gradient is no protection.

    ``samples``  pairs of points x + delta v, x - delta v per step
    ``delta``    their distance from x, in half-widths of the box

    Property: finds violations; finding none says nothing. A step costs 2 ``samples`` + 1 forward passes.
    Reference: Uesato et al. 2018, *Adversarial Risk and the Dangers of Evaluating Against Weak Attacks*;
    Spall 1992.
    """

    steps: int = 100
    restarts: int = 1
    samples: int = 64
    delta: float = 0.1
    loss: str = "margin"
    rule: StepRule = field(default_factory=lambda: Adam(0.1, relative=True))
    decay: StepDecay = field(default_factory=StepDecay)
    start: str = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_count(self.samples) and is_positive(self.delta)):
            raise ConfigError(
                f"SPSA(samples={self.samples!r}, delta={self.delta!r}): "
                "give at least 1 sample, a whole number, and a positive delta"
            )

    def begin(self, rows: AttackRows) -> None:
        rows.x = STARTS[self.start](rows)
        self.rule.begin(rows)

    def step(self, rows: AttackRows, t: int) -> Tensor:
        rows.look()
        gradient = self._estimate(rows, t).nan_to_num_(0.0, 0.0, 0.0)
        return self.rule.advance(rows, rows.x, gradient, t, self.decay(t, self.steps))

    def _estimate(self, rows: AttackRows, t: int) -> Tensor:
        """Average (f(x + delta v) - f(x - delta v)) / (2 delta) v over random signs v: (R, ...)."""
        total = torch.zeros_like(rows.x)
        at_once = max(1, rows.probes_at_once // 2)
        reach = rows.half_width * self.delta
        for first in range(0, self.samples, at_once):
            signs = [rows.signs(t, number) for number in range(first, min(first + at_once, self.samples))]
            ahead, behind = ([rows.x + side * reach * v for v in signs] for side in (1, -1))
            losses = rows.probe(torch.stack(ahead + behind), LOSSES[self.loss])  # (2 P, R)
            slopes = (losses[: len(signs)] - losses[len(signs) :]) / (2 * self.delta * self.samples)
            # One by one and in order: how many fit into memory must not change the sum.
            for slope, v in zip(slopes, signs, strict=True):
                total += slope.view(-1, *[1] * (v.dim() - 1)) * v
        return total
