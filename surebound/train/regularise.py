"""Regularisers on the bounds of hidden layers, for any method that has such bounds.

Shi et al. 2021, "Fast certified robust training with short warmup", section 4.3: while the radius still grows,
keep the mean radius from exploding with depth, and keep always-active and always-inactive units in balance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.errors import ConfigError
from surebound.interval import Interval


@dataclass(frozen=True)
class BoundRegulariser:
    """Weight `weight` · (1 - eps/eps_train) on tightness and balance, each forgiven up to `tolerance`.

    `input_scale` is what a normalising first layer multiplies radii by (the mean of 1/std), so that hidden radii
    are compared with that of the normalised input.
    """

    weight: float = 0.5
    tolerance: float = 0.5
    tightness: bool = True
    balance: bool = True
    input_scale: float = 1.0

    def __post_init__(self) -> None:
        if not (self.weight >= 0 and 0 < self.tolerance <= 1 and self.input_scale > 0):
            raise ConfigError(
                "a bound regulariser needs weight >= 0, 0 < tolerance <= 1 and input_scale > 0, got "
                f"weight={self.weight}, tolerance={self.tolerance}, input_scale={self.input_scale}"
            )

    def intensity(self, eps: float, eps_train: float) -> float:
        """The weight at radius `eps`; 0 at radius 0, where ratios of radii mean nothing, and at the end."""
        if not 0.0 < eps < eps_train:
            return 0.0
        return self.weight * (1.0 - eps / eps_train)

    def __call__(self, pre_activations: Sequence[Interval], input_radius: Tensor) -> Tensor:
        """The penalty (0-d), before its weight; `input_radius` is the mean radius of the input box (0-d)."""
        total = torch.zeros((), device=input_radius.device, dtype=input_radius.dtype)
        for bounds in pre_activations:
            if self.tightness:
                total = total + self._tightness(bounds, input_radius * self.input_scale)
            if self.balance:
                total = total + self._balance(bounds)
        return total / max(len(pre_activations), 1)

    def _tightness(self, bounds: Interval, input_radius: Tensor) -> Tensor:
        ratio = input_radius / bounds.radius.mean().clamp_min(1e-12)
        return F.relu(self.tolerance - ratio) / self.tolerance

    def _balance(self, bounds: Interval) -> Tensor:
        center = bounds.center
        active = (bounds.lower > 0).to(center.dtype)
        inactive = (bounds.upper < 0).to(center.dtype)
        spread = (center - center.mean()).square()
        means = _evenness((center * active).sum(), -(center * inactive).sum())
        spreads = _evenness((spread * active).sum(), (spread * inactive).sum())
        return (F.relu(self.tolerance - means) + F.relu(self.tolerance - spreads)) / self.tolerance


def _evenness(a: Tensor, b: Tensor) -> Tensor:
    """min(a/b, b/a) of two sums >= 0 (0-d); 1 when both vanish, so that nothing stable is nothing to balance."""
    larger, smaller = torch.maximum(a, b), torch.minimum(a, b)
    empty = larger <= 0
    return torch.where(
        empty, torch.ones_like(larger), smaller / torch.where(empty, torch.ones_like(larger), larger)
    )
