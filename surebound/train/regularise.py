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
from surebound.propagate.training import Moments


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

    def __call__(self, pre_activations: Sequence[Moments], input_radius: Tensor) -> Tensor:
        """The penalty (0-d), before its weight; `input_radius` is the mean radius of the input box (0-d)."""
        total = torch.zeros((), device=input_radius.device, dtype=torch.float64)
        for layer in pre_activations:
            center, radius = layer.sums[0] / layer.units, layer.sums[1] / layer.units
            if self.tightness:
                total = total + self._tightness(radius, input_radius.double() * self.input_scale)
            if self.balance:
                total = total + self._balance(layer.sums, center)
        return (total / max(len(pre_activations), 1)).to(input_radius.dtype)

    def _tightness(self, radius: Tensor, input_radius: Tensor) -> Tensor:
        return F.relu(self.tolerance - input_radius / radius.clamp_min(1e-12)) / self.tolerance

    def _balance(self, moments: Tensor, mean: Tensor) -> Tensor:
        """``mean``: of the centres of all units, around which the spreads are taken."""
        on, off = moments[2:5], moments[5:8]  # number, sum, sum of squares
        means = _evenness(on[1], -off[1])
        spreads = _evenness(_spread(on, mean), _spread(off, mean))
        return (F.relu(self.tolerance - means) + F.relu(self.tolerance - spreads)) / self.tolerance


def _spread(moments: Tensor, mean: Tensor) -> Tensor:
    """The sum of squares of distances to a mean, from number, sum and sum of squares."""
    count, total, squares = moments.unbind()
    return (squares - 2 * mean * total + mean * mean * count).clamp_min(0)


def _evenness(a: Tensor, b: Tensor) -> Tensor:
    """min(a/b, b/a) of two sums >= 0 (0-d); 1 when both vanish, so that nothing stable is nothing to balance."""
    larger, smaller = torch.maximum(a, b), torch.minimum(a, b)
    empty = larger <= 0
    return torch.where(
        empty, torch.ones_like(larger), smaller / torch.where(empty, torch.ones_like(larger), larger)
    )
