"""Which ReLU's sign would tighten rows most, through all bounds inside the network: a derivative by every gap.

A bound loses at a ReLU its coefficient times the gap between its lines. Bounds of ReLUs behind it lose in the same way,
and with them their gaps grow: for l < 0 < u the upper line's intercept -u l / (u - l) grows by l^2 / (u - l)^2 with u
and by u^2 / (u - l)^2 with -l. From the outputs back to the first layer, these derivatives add up every gap's weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.bounds.reduced.network import Layer, Reduced
from surebound.bounds.reduced.passes import Multipliers, Passes


def influence(reduced: Reduced, own: Tensor) -> Tensor:
    """Estimate by how much signs of ReLUs (U,) tighten bounds whose coefficients of them are ``own`` (N, U); 0: fixed.

    A score for choosing: no bound rests on it.
    """
    passes = Passes(reduced, torch.float32)
    slopes = torch.cat([layer.slope for layer in reduced.layers]).float()
    weight, end = own.abs().sum(0).float(), reduced.unstable
    gaps = []
    for layer in reversed(reduced.layers):
        start = end - len(layer)
        if start:
            low, up = _lost(layer)
            weight[:start] += _inside(reduced, passes, layer, slopes, weight[start:end], low, up)[:start]
        open_ = (layer.fixed == 0) & (layer.lower < 0) & (layer.upper > 0)
        gaps.append(torch.where(open_, layer.top, 0.0).float())
        end = start
    return weight * torch.cat(gaps[::-1])


def _lost(layer: Layer) -> tuple[Tensor, Tensor]:
    """Return by how much the gap of each entry (U,) grows with minus its lower and with its upper bound."""
    low, high = layer.lower.float(), layer.upper.float()
    open_ = (layer.fixed == 0) & (low < 0) & (high > 0)
    width = torch.where(open_, high - low, 1.0)
    return torch.where(open_, (high / width) ** 2, 0.0), torch.where(open_, (low / width) ** 2, 0.0)


def _inside(
    reduced: Reduced, passes: Passes, layer: Layer, slopes: Tensor, weight: Tensor, low: Tensor, up: Tensor
) -> Tensor:
    """Return the weights (U,) of gaps before a layer by what its bounds lose there."""
    index = ((low > 0) & (weight > 0)).nonzero()[:, 0]
    rows = layer.rows.select(index)
    a = torch.cat([rows.up, -rows.low]).float()
    alphas = slopes.expand(len(a), -1)
    m = Multipliers(reduced.signs.expand(len(a), -1), alphas, torch.zeros_like(alphas))
    found = passes.pull(a, a.new_zeros(len(a)), m)
    each = torch.cat([weight[index] * up[index], weight[index] * low[index]])
    return each @ found.own.abs()
