"""The margin of Carlini and Wagner, climbed in a variable that cannot leave the box."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from surebound.attack.base import Attack
from surebound.attack.objective import LOSSES
from surebound.attack.rows import AttackRows
from surebound.attack.starts import STARTS
from surebound.attack.steps import Adam, StepDecay, StepRule

#: Starts are pulled this far off the faces of the box, where the change of variables has no slope.
_INSIDE = 0.98


@dataclass(frozen=True)
class CarliniWagner(Attack):
    """Climb the margin in w, where x = centre + half-width * tanh(w): nothing to project, no bouncing.

    The constraint is the box, not a penalty on the distance as in the original, because the region is given.

    Property: finds violations; finding none says nothing.
    Reference: Carlini and Wagner 2017, f_6 and the change of variables of section V-B.
    """

    restarts: int = 1
    rule: StepRule = field(default_factory=Adam)
    decay: StepDecay = field(default_factory=StepDecay)
    start: str = "uniform"

    def begin(self, rows: AttackRows) -> None:
        width = rows.half_width
        offset = (STARTS[self.start](rows) - _middle(rows)) / torch.where(width > 0, width, 1)
        rows.state["w"] = torch.atanh(offset.clamp(-1, 1) * _INSIDE)
        rows.x = _point(rows)
        self.rule.begin(rows)

    def step(self, rows: AttackRows, t: int) -> Tensor:
        slope = rows.half_width * (1 - torch.tanh(rows.state["w"]) ** 2)  # dx/dw
        gradient = rows.gradient(LOSSES["margin"]) * slope
        rows.state["w"] = self.rule.advance(rows, rows.state["w"], gradient, t, self.decay(t, self.steps))
        return _point(rows)


def _middle(rows: AttackRows) -> Tensor:
    return rows.lower + rows.half_width


def _point(rows: AttackRows) -> Tensor:
    return _middle(rows) + rows.half_width * torch.tanh(rows.state["w"])
