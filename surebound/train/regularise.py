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

from surebound.bounds.training.engine import Moments
from surebound.errors import ConfigError


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
        """Return the weight at radius `eps`; 0 at radius 0, where ratios of radii mean nothing, and at the end."""
        if not 0.0 < eps < eps_train:
            return 0.0
        return self.weight * (1.0 - eps / eps_train)

    def __call__(self, pre_activations: Sequence[Moments], input_radius: Tensor) -> Tensor:
        """Return the penalty (0-d), before its weight; `input_radius` is the mean radius of the input box (0-d)."""
        if not pre_activations:
            return torch.zeros_like(input_radius)
        sums = torch.stack([layer.sums for layer in pre_activations])  # (L, 8): all layers at once, few calls
        units = sums.new_tensor([layer.units for layer in pre_activations])  # (L,)
        penalty = torch.zeros_like(units)
        if self.tightness:
            penalty = penalty + self._tightness(sums[:, 1] / units, input_radius.double() * self.input_scale)
        if self.balance:
            penalty = penalty + self._balance(sums, sums[:, 0] / units)
        return penalty.mean().to(input_radius.dtype)

    def _tightness(self, radii: Tensor, input_radius: Tensor) -> Tensor:
        """Score how tight the layers' boxes are by their mean radii (L,)."""
        return F.relu(self.tolerance - input_radius / radii.clamp_min(1e-12)) / self.tolerance

    def _balance(self, sums: Tensor, means: Tensor) -> Tensor:
        """Score how balanced stable ReLUs are; ``means`` (L,): of all centres, around which spreads are taken."""
        on, off = sums[:, 2:5], sums[:, 5:8]  # number, sum, sum of squares
        levels = _evenness(on[:, 1], -off[:, 1])
        spreads = _evenness(_spread(on, means), _spread(off, means))
        return (F.relu(self.tolerance - levels) + F.relu(self.tolerance - spreads)) / self.tolerance


def _spread(moments: Tensor, mean: Tensor) -> Tensor:
    """Return the sums of squares of distances to a mean (L,), from number, sum and sum of squares (L, 3)."""
    count, total, squares = moments.unbind(1)
    return (squares - 2 * mean * total + mean * mean * count).clamp_min(0)


def _evenness(a: Tensor, b: Tensor) -> Tensor:
    """Return min(a/b, b/a) of sums >= 0 (L,); 1 when both vanish: nothing stable is nothing to balance."""
    larger, smaller = torch.maximum(a, b), torch.minimum(a, b)
    empty = larger <= 0
    return torch.where(empty, torch.ones_like(larger), smaller / torch.where(empty, torch.ones_like(larger), larger))
