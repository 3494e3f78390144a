"""Projected gradient ascent."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from surebound.attack.base import Attack
from surebound.attack.objective import LOSSES
from surebound.attack.rows import AttackRows
from surebound.attack.starts import STARTS
from surebound.attack.steps import Adam, StepDecay, StepRule


@dataclass(frozen=True)
class PGD(Attack):
    """Projected gradient ascent with restarts, untargeted; by default the paper's, with a step that decays.

    ``loss``   'margin', the largest z_k - z_true, or 'cross-entropy'
    ``rule``   Adam(0.1), or Sign(0.25) for steps of one length
    ``decay``  StepDecay(at=()) keeps the step constant
    ``start``  'uniform', 'corner', 'mixed' (one after the other) or 'center'

    Property: finds violations; finding none says nothing.
    Reference: Madry et al. 2018; Gowal et al. 2018, section 4 (200 steps, 10 restarts) and the appendix that
    compares it with a complete solver (why the step decays, and why to start from corners).

    >>> PGD(steps=7, restarts=1).trials(choices=9)
    1
    """

    loss: str = "margin"
    rule: StepRule = field(default_factory=Adam)
    decay: StepDecay = field(default_factory=StepDecay)
    start: str = "uniform"

    def begin(self, rows: AttackRows) -> None:
        rows.x = STARTS[self.start](rows)
        self.rule.begin(rows)

    def step(self, rows: AttackRows, t: int) -> Tensor:
        gradient = rows.gradient(LOSSES[self.loss])
        return self.rule.advance(rows, rows.x, gradient, t, self.decay(t, self.steps))
