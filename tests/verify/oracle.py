"""A slow, obvious truth for tiny ReLU networks: every activation pattern is a linear program of its own."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.optimize import linprog
from torch import Tensor, nn


def exact_maximum(net: nn.Sequential, lower: Tensor, upper: Tensor, c: np.ndarray, d: float = 0.0) -> float:
    """max c.z + d of a fully connected ReLU net (Linear, ReLU, ..., Linear) over a box (N,)."""
    layers = [m for m in net if isinstance(m, nn.Linear)]
    widths = [layer.out_features for layer in layers[:-1]]
    box = list(zip(lower.double().tolist(), upper.double().tolist(), strict=True))
    best = -np.inf
    for bits in itertools.product((0, 1), repeat=sum(widths)):
        value = _pattern_maximum(layers, widths, bits, box, c)
        best = max(best, value)
    return best + d


def _pattern_maximum(
    layers: list[nn.Linear],
    widths: list[int],
    bits: tuple[int, ...],
    box: list[tuple[float, float]],
    c: np.ndarray,
) -> float:
    matrix, constant = np.eye(len(box)), np.zeros(len(box))
    rows, sides, used = [], [], 0
    for index, layer in enumerate(layers):
        weight, bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
        matrix, constant = weight @ matrix, weight @ constant + bias
        if index < len(widths):
            on = np.array(bits[used : used + widths[index]], dtype=float)
            used += widths[index]
            sign = 1.0 - 2.0 * on  # off: pre-activation <= 0; on: minus pre-activation <= 0
            rows.append(sign[:, None] * matrix)
            sides.append(-sign * constant)
            matrix, constant = on[:, None] * matrix, on * constant
    if not rows:
        found = linprog(-(c @ matrix), bounds=box)
    else:
        found = linprog(-(c @ matrix), A_ub=np.vstack(rows), b_ub=np.concatenate(sides), bounds=box)
    return float(-found.fun + c @ constant) if found.status == 0 else -np.inf


def tiny_net(widths: list[int], seed: int, scale: float = 1.0) -> nn.Sequential:
    """A fully connected ReLU net with random weights."""
    import torch

    torch.manual_seed(seed)
    modules: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layer = nn.Linear(n_in, n_out)
        layer.weight.data *= scale
        modules += [layer.requires_grad_(False), nn.ReLU()]
    return nn.Sequential(*modules[:-1]).eval()
