"""Look for points where all rows of a case are >= 0: gradient ascent on the smallest row, many starts at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

#: (N, *input) -> (N, K)
Network = Callable[[Tensor], Tensor]

#: How far of the box each step goes, and how many points run at a time.
_RATES = (0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.0625, 0.0625, 0.03, 0.03, 0.015, 0.0075)
_ROWS = 512


def project(x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The closest point of a box."""
    return torch.minimum(torch.maximum(x, lower), upper)


def smallest_row(z: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """min over rows of c.z + d: z (N, K), c (N, S, K), d (N, S), infinite in rows that say nothing: (N,)."""
    return (torch.einsum("nsk,nk->ns", c.to(z), z) + d.to(z)).amin(1)


def climb(
    network: Network, x: Tensor, lower: Tensor, upper: Tensor, c: Tensor, d: Tensor, deadline: float
) -> Iterator[Tensor]:
    """Points (1, *input) where every row looks >= 0, from starts x (N, *input); the caller checks them."""
    for first in range(0, len(x), _ROWS):
        part = slice(first, first + _ROWS)
        yield from _climb(network, x[part], lower[part], upper[part], c[part], d[part], deadline)


def _climb(
    network: Network, x: Tensor, lower: Tensor, upper: Tensor, c: Tensor, d: Tensor, deadline: float
) -> Iterator[Tensor]:
    x, width = project(x, lower, upper), upper - lower
    for rate in (*_RATES, 0.0):
        with torch.enable_grad():
            point = x.detach().requires_grad_(True)
            value = smallest_row(network(point), c, d)
            (gradient,) = torch.autograd.grad(value.sum(), point, materialize_grads=True)
        for i in (~(value < 0)).nonzero()[:, 0].tolist():  # NaN too: the caller knows what that means
            yield point[i : i + 1].detach()
        if rate == 0.0 or time.monotonic() > deadline:
            return
        x = project(point.detach() + rate * width * gradient.nan_to_num(0.0).sign(), lower, upper)


def starts(lower: Tensor, upper: Tensor, seed: int, count: int) -> Tensor:
    """Inner points of boxes (N, *input) to start from: the middle, then random ones: (count * N, *input)."""
    generator = torch.Generator().manual_seed(seed)
    middle = lower / 2 + upper / 2
    made = [middle]
    for _ in range(count - 1):
        made.append(lower + torch.rand(lower.shape, generator=generator) * (upper - lower))
    again = [count] + [1] * (lower.dim() - 1)
    return project(torch.cat(made), lower.repeat(again), upper.repeat(again))
