"""What the checker computes of a network at one point: the bounds of its outputs there."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from surebound.checker.checker import CheckedNetwork, Numbers
from surebound.errors import InputError

Floats = NDArray[np.float64]

_network = functools.lru_cache(2)(CheckedNetwork)


def readable(network: bytes) -> None:
    """Raise Rejected unless the checker can read a certificates' network."""
    _network(network, Numbers(exact=False, deployed=True))


def point_bounds(network: bytes, x: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Bound the outputs (K,) of every float32 execution of a certificates' network at a point of so many numbers."""
    checked = _network(network, Numbers(exact=False, deployed=True))
    if x.size != int(np.prod(checked.shapes[0])):
        raise InputError(f"a point of {x.size} numbers; the network takes {checked.shapes[0]}")
    point = x.astype(np.float64).reshape(1, *checked.shapes[0])
    checked.over((point, point), linear=False)
    return checked.low[-1].reshape(-1), checked.high[-1].reshape(-1)
