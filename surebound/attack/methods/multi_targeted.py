"""Projected gradient ascent towards one row of the specification at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from surebound.attack.base import Attack
from surebound.attack.options import is_count
from surebound.attack.rows import AttackRows
from surebound.attack.starts import STARTS
from surebound.attack.steps import Adam, StepDecay, StepRule
from surebound.errors import ConfigError


@dataclass(frozen=True)
class MultiTargeted(Attack):
    """PGD with one search per wrong class, the closest first; any violation counts, whichever was aimed at.

    ``targets`` keeps only that many of the closest classes, as the clean outputs rank them; None keeps all.

    Property: finds violations; finding none says nothing. Costs up to K - 1 times PGD.
    Reference: Gowal et al. 2019, *An Alternative Surrogate Loss for PGD-based Adversarial Testing*.

    >>> MultiTargeted(restarts=2).trials(choices=9), MultiTargeted(restarts=2, targets=3).trials(choices=9)
    (18, 6)
    """

    restarts: int = 1
    targets: int | None = None
    rule: StepRule = field(default_factory=Adam)
    decay: StepDecay = field(default_factory=StepDecay)
    start: str = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.targets is not None and not is_count(self.targets):
            raise ConfigError(f"MultiTargeted(targets={self.targets!r}): give at least 1 target, or None for all")

    def trials(self, choices: int) -> int:
        return self.restarts * self._aims(choices)

    def begin(self, rows: AttackRows) -> None:
        # Trials 0, 1, 2, ... go through the targets, then through them again from another start.
        rows.state["target"] = rows.target(rows.trial % self._aims(rows.choices)).unsqueeze(1)
        rows.x = STARTS[self.start](rows)
        self.rule.begin(rows)

    def step(self, rows: AttackRows, t: int) -> Tensor:
        target = rows.state["target"]  # (R, 1)
        gradient = rows.gradient(lambda values: values.gather(1, target).squeeze(1))
        return self.rule.advance(rows, rows.x, gradient, t, self.decay(t, self.steps))

    def _aims(self, choices: int) -> int:
        return choices if self.targets is None else min(choices, self.targets)
