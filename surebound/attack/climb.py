"""Signed gradient ascent with shrinking steps, many starts at once: the light attack inside searches.

What is climbed is given as a function, so that whole networks and reduced ones (attack/reduced.py) share the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from surebound.attack.derivative import derivative
from surebound.region import project

#: How far of the box each step goes, and how many points run at a time.
RATES = (0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.0625, 0.0625, 0.03, 0.03, 0.015, 0.0075)
_ROWS = 512

#: (N, *input) -> (N, K)
Network = Callable[[Tensor], Tensor]

#: (network, starts, lower, upper, c, d, deadline) -> points where every row looks >= 0, and whose start they come from.
Attack = Callable[[Network, Tensor, Tensor, Tensor, Tensor, Tensor, float], Iterator[tuple[Tensor, int]]]

#: Points (N, *input) -> their values (N,) and what gives the gradients (N, *input) of these.
Climbed = Callable[[Tensor], tuple[Tensor, Callable[[], Tensor]]]

#: Slopes (N, *input) -> the points (N, *input) of a region where linear functions of these slopes are largest.
Farthest = Callable[[Tensor], Tensor]


def ascent(
    climbed: Climbed,
    x: Tensor,
    lower: Tensor,
    upper: Tensor,
    rates: tuple[float, ...],
    deadline: float,
    farthest: Farthest | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield points (N, *input) and their values (N,): the starts, then after every step.

    Steps go along signs; or towards the farthest point of a region that is no box (Frank & Wolfe 1956).
    """
    x, width = project(x, lower, upper), upper - lower
    for rate in (*rates, 0.0):
        value, gradient = climbed(x)
        yield x, value
        if rate == 0.0 or time.monotonic() > deadline:
            return
        slope = gradient().nan_to_num(0.0)
        further = x + rate * width * slope.sign() if farthest is None else x.lerp(farthest(slope), rate)
        x = project(further, lower, upper)


def smallest_row(z: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Return the smallest of rows c.z + d: z (N, K), c (N, S, K), d (N, S), infinite in rows that say nothing: (N,)."""
    return (torch.einsum("nsk,nk->ns", c.to(z), z) + d.to(z)).amin(1)


def climb(
    network: Network, x: Tensor, lower: Tensor, upper: Tensor, c: Tensor, d: Tensor, deadline: float
) -> Iterator[tuple[Tensor, int]]:
    """Yield points (1, *input) where every row looks >= 0, and whose start they come from; the caller checks them.

    x (N, *input): the starts; c (N, S, K), d (N, S): rows of each.
    """
    for first in range(0, len(x), _ROWS):
        part = slice(first, first + _ROWS)
        rows = _smallest(network, c[part], d[part])
        for points, value in ascent(rows, x[part], lower[part], upper[part], RATES, deadline):
            for i in (~(value < 0)).nonzero()[:, 0].tolist():  # NaN too: the caller knows what that means
                yield points[i : i + 1], first + i


def _smallest(network: Network, c: Tensor, d: Tensor) -> Climbed:
    """Climb the smallest row of a network's outputs."""

    def climbed(x: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        with torch.enable_grad():
            point = x.detach().requires_grad_(True)
            value = smallest_row(network(point), c, d)
            total = value.sum()

        def gradient() -> Tensor:
            return derivative(total, point)

        return value.detach(), gradient

    return climbed


def starts(lower: Tensor, upper: Tensor, seed: int, count: int) -> Tensor:
    """Return inner points of boxes (N, *input) to start from: the middle, then random ones: (count * N, *input)."""
    generator = torch.Generator().manual_seed(seed)
    made = [lower / 2 + upper / 2]
    for _ in range(count - 1):
        draw = torch.rand(lower.shape, generator=generator).to(lower)
        made.append(lower + draw * (upper - lower))
    again = [count] + [1] * (lower.dim() - 1)
    return project(torch.cat(made), lower.repeat(again), upper.repeat(again))
