"""The arithmetic of forward domains: float64 with roundings paid for; in training the network's, unpaid."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.numerics.slack import FEW_ROUNDINGS, several_sums
from surebound.numerics.units import gamma


@dataclass(frozen=True)
class Working:
    """A dtype to compute in, and what its roundings cost; nothing where no proof rests on them (``pays``)."""

    dtype: torch.dtype = torch.float64
    pays: bool = True

    @property
    def few(self) -> float:
        """What a short elementwise formula may lose, relative to the sizes of its operands (``FEW_ROUNDINGS``)."""
        return FEW_ROUNDINGS if self.pays else 0.0

    def sums(self, terms: int, times: int) -> float:
        """Bound the rounding error of ``times`` sums of ``terms`` summands, relative to their sizes."""
        return several_sums(terms, times) if self.pays else 0.0

    def sum_of(self, terms: int) -> float:
        """Bound the relative rounding error of one sum of non-negative ``terms``."""
        return gamma(terms, torch.float64) if self.pays else 0.0

    def of(self, value: Tensor) -> Tensor:
        """Convert numbers to the dtype."""
        return value.to(self.dtype)


#: The arithmetic of proofs.
WIDE = Working()
