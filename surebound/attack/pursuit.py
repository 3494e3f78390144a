"""Adam on the sum of what rows lack: the attack on conjunctions, where the smallest row alone gives no direction.

Rows that hold stop to pull, so that a thin shell between two of them is entered and followed. Rows are measured by
their size at the starts. A step that no longer gains is halved; after the third time the attack ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from surebound.attack.climb import Network
from surebound.attack.derivative import derivative
from surebound.region import project

#: Length of the first steps by the box's width, and how many at most.
RATE, STEPS = 0.05, 400

#: Steps without a gain of this share before the rate is halved, and how often it is.
WAIT, GAIN, HALVINGS = 20, 0.02, 3


def pursue(
    network: Network, x: Tensor, lower: Tensor, upper: Tensor, c: Tensor, d: Tensor, deadline: float
) -> Iterator[tuple[Tensor, int]]:
    """Yield points (1, *input) where every row looks >= 0, and whose start they come from; the caller checks them.

    x (N, *input): the starts; c (N, S, K), d (N, S): rows of each, d infinite in rows that say nothing.
    """
    x, width = project(x, lower, upper), upper - lower
    mean, square = torch.zeros_like(x), torch.zeros_like(x)
    size: Tensor | None = None
    best, since, rate, halved = torch.tensor(-torch.inf), 0, RATE, 0
    for step in range(1, STEPS + 1):
        point = x.detach().requires_grad_(True)
        with torch.enable_grad():
            z = network(point)
            rows = torch.einsum("nsk,nk->ns", c.to(z), z) + d.to(z)
            size = _size(rows.detach()) if size is None else size
            lacks = (rows / size).clamp(max=0).sum(1)
            gradient = derivative(lacks.sum(), point).nan_to_num(0.0)
        held = (rows >= 0).all(1) | rows.isnan().any(1)  # NaN too: the caller knows what that means
        for i in held.nonzero()[:, 0].tolist():
            yield x[i : i + 1], i
        most = lacks.detach().nan_to_num(-torch.inf).amax()
        if most > best * (1 - GAIN):
            best, since = most, 0
        since += 1
        if since > WAIT:
            rate, halved, since = rate / 2, halved + 1, 0
        if halved > HALVINGS or time.monotonic() > deadline:
            return
        mean = 0.8 * mean + 0.2 * gradient
        square = 0.95 * square + 0.05 * gradient.square()
        root = (square / (1 - 0.95**step)).sqrt()
        move = mean / (1 - 0.8**step) / root.clamp(min=torch.finfo(root.dtype).tiny)
        x = project(x + rate * width * move.clamp(-1, 1), lower, upper)


def _size(rows: Tensor) -> Tensor:
    """Return the usual size (S,) of every row at the starts (N, S); 1 for rows that say nothing."""
    size = rows.abs().nan_to_num(0.0, 0.0, 0.0).mean(0)
    return torch.where(size > 0, size, torch.ones_like(size))
