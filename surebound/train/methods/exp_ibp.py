"""Exp-IBP: the geometric mean of the losses of an attack and of the interval bounds (De Palma et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.train.methods.expressive import Expressive


@dataclass(frozen=True)
class ExpIBP(Expressive):
    """CE(attacked logits)^(1 - alpha) · CE(worst-case margins)^alpha of each example, mean over the batch.

    Property: between an estimate and an upper bound of the robust loss, and never above MTL-IBP at the same alpha,
    because a geometric mean is at most the arithmetic one.
    Reference: De Palma et al. 2024, section 4.3.
    """

    name: ClassVar[str] = "exp-ibp"

    def joined(self, logits: Tensor, margins: Tensor, labels: Tensor, alpha: float) -> Tensor:
        """Mix the logarithms of the losses; a loss that is 0 has no gradient to give."""
        least = torch.finfo(logits.dtype).tiny
        attacked, bounded = (
            F.cross_entropy(value, labels, reduction="none").clamp_min(least).log() for value in (logits, margins)
        )
        return torch.lerp(attacked, bounded, alpha).exp().mean()
