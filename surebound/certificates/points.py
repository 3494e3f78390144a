"""What the checker computes of a network at one point: the bounds of its outputs there."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from surebound.checker.checker import CheckedNetwork, Numbers
from surebound.errors import InputError

Floats = NDArray[np.float64]

#: Points that go through together: fewer read the weights more often, more need memory that is farther away.
TOGETHER = 8

_network = functools.lru_cache(2)(CheckedNetwork)


def readable(network: bytes) -> None:
    """Raise Rejected unless the checker can read a certificates' network."""
    _network(network, Numbers(exact=False, deployed=True))


def point_bounds(network: bytes, points: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Bound the outputs (N, K) of every float32 execution of a certificates' network at points (N, ...)."""
    checked = _network(network, Numbers(exact=False, deployed=True))
    if points[0].size != int(np.prod(checked.shapes[0])):
        raise InputError(f"a point of {points[0].size} numbers; the network takes {checked.shapes[0]}")
    every, low, high = points.astype(np.float64).reshape(-1, *checked.shapes[0]), list[Floats](), list[Floats]()
    for at in range(0, len(every), TOGETHER):
        part = every[at : at + TOGETHER]
        checked.over((part, part), linear=False)
        low.append(checked.low[-1].reshape(len(part), -1))
        high.append(checked.high[-1].reshape(len(part), -1))
    return np.concatenate(low), np.concatenate(high)
