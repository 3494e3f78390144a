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
    every = points.astype(np.float64).reshape(-1, *checked.shapes[0])
    found = [_outputs(checked, every[at : at + TOGETHER]) for at in range(0, len(every), TOGETHER)]
    low, high = (np.concatenate(ends) for ends in zip(*found, strict=True))
    return low, high


def _outputs(checked: CheckedNetwork, points: Floats) -> tuple[Floats, Floats]:
    around = _around(checked, points)
    if around is not None:
        return around[0] - around[1], around[0] + around[1]
    ends = list[tuple[Floats, Floats]]()
    for point in points[:, None]:
        checked.over((point, point), linear=False)
        ends.append((checked.low[-1].reshape(1, -1), checked.high[-1].reshape(1, -1)))
    return np.concatenate([low for low, _ in ends]), np.concatenate([high for _, high in ends])


def _around(checked: CheckedNetwork, points: Floats) -> tuple[Floats, Floats] | None:
    """Return the outputs (N, K) at points and what rounding adds to them, or None of a network with other steps.

    These are the checker's interval bounds, with two products a layer instead of three: what an execution may be off by
    before a layer, and what the layer's own rounding adds, go through |A| together.
    """
    number, found = checked.number, [(points, np.zeros_like(points))]
    for step in checked.steps:
        values = [found[i] for i in step.inputs]
        (x, off), floor = values[0], checked.floor
        if step.left is not None:
            low, high = (np.maximum(step.left * end, end) for end in (x - off, x + off))  # off is 0 where both are < 0
            paid = (number.network(2) + number.own(4)) * bool(step.left) * (np.abs(x) + off + floor)
            found.append((low / 2 + high / 2, high / 2 - low / 2 + paid))
        elif step.apply is None:
            return None
        elif not step.terms:
            found.append((step.apply(x, False), step.apply(off, False)))
        else:
            rate = number.network(step.terms) + number.own(4 * step.terms + 64, step.always)
            center, error = np.asarray(step.bias), rate * np.asarray(step.bias_size + floor)
            for (x, off), sign in zip(values, step.signs, strict=True):
                center = center + sign * step.apply(x, False)
                error = error + step.apply(off + rate * (np.abs(x) + off + floor), True)
            found.append((center, error))
    center, error = (each.reshape(len(points), -1) for each in found[-1])
    return center, error
