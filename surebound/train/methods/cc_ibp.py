"""CC-IBP: the loss of a convex combination of attacked logits and interval bounds (De Palma et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surebound.train.losses import cross_entropy
from surebound.train.methods.expressive import Expressive


@dataclass(frozen=True)
class CCIBP(Expressive):
    """CE((1 - alpha) · attacked logit differences + alpha · worst-case margins).

    Property: between an estimate and an upper bound of the robust loss, and never above MTL-IBP at the same alpha,
    because the cross-entropy is convex in its margins.
    Reference: De Palma et al. 2024, section 4.1.
    """

    name: ClassVar[str] = "cc-ibp"

    def joined(self, logits: Tensor, margins: Tensor, labels: Tensor, alpha: float) -> Tensor:
        """Mix the margins, then take the loss."""
        differences = logits - logits.gather(1, labels[:, None])  # (B, K), z_k - z_true at the attacked images
        return cross_entropy(torch.lerp(differences, margins, alpha), labels)
