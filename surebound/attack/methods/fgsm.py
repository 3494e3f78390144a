"""The fast gradient sign method: one gradient, one corner."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.attack.base import Attack
from surebound.attack.objective import LOSSES
from surebound.attack.rows import AttackRows
from surebound.attack.starts import STARTS


@dataclass(frozen=True)
class FGSM(Attack):
    """Go to the corner of the box that the gradient points to; with ``steps > 1``, from corner to corner.

    Property: finds violations; finding none says nothing. The cheapest attack, and the weakest.
    Reference: Goodfellow et al. 2015.
    """

    steps: int = 1
    restarts: int = 1
    loss: str = "cross-entropy"
    start: str = "center"

    def begin(self, rows: AttackRows) -> None:
        rows.x = STARTS[self.start](rows)

    def step(self, rows: AttackRows, t: int) -> Tensor:
        gradient = rows.gradient(LOSSES[self.loss])
        corner = torch.where(gradient > 0, rows.upper, rows.lower)
        return torch.where(gradient == 0, rows.x, corner)
