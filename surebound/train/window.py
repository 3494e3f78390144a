"""Running means that stay on the device until they are read."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class ScalarWindow:
    """Sums of named 0-d tensors since the last reading: reading is the only synchronisation with the host."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, scalars: Mapping[str, Tensor]) -> None:
        """Add one step's scalars (detached, 0-d)."""
        for name, value in scalars.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
            self._counts[name] = self._counts.get(name, 0) + 1

    def finite(self) -> bool:
        """Say whether everything added since the last reading is finite; NaN and infinities stay in a sum."""
        return all(bool(torch.isfinite(s)) for s in self._sums.values())

    def read(self) -> dict[str, float]:
        """Return the means since the last reading; start anew."""
        means = {name: float(s) / self._counts[name] for name, s in self._sums.items()}
        self._sums.clear()
        self._counts.clear()
        return means
