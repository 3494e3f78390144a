"""MTL-IBP: the losses of an attack and of the interval bounds, as two tasks (De Palma et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from surebound.train.losses import cross_entropy
from surebound.train.methods.expressive import Expressive


@dataclass(frozen=True)
class MTLIBP(Expressive):
    """(1 - alpha) · CE(attacked logits) + alpha · CE(worst-case margins).

    Property: between an estimate and an upper bound of the robust loss; networks trained with a small alpha are proved
    by linear bounds and branch and bound, hardly by intervals.
    Reference: De Palma et al. 2024, section 4.2.
    """

    name: ClassVar[str] = "mtl-ibp"

    def joined(self, logits: Tensor, margins: Tensor, labels: Tensor, alpha: float) -> Tensor:
        """Weigh the two losses."""
        return (1.0 - alpha) * cross_entropy(logits, labels) + alpha * cross_entropy(margins, labels)
