"""Trees of sub-problems from their leaves: which splits, in which order, cover the whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from surebound.errors import BoundError

Floats = NDArray[np.float64]


def split_tree(signs: NDArray[np.int8]) -> tuple[list[int], list[int]]:
    """Return a walk of the tree whose leaves have signs (n, U), and the leaves in its order.

    A number is the unit that is split, its negative half first; -1 is a leaf. Leaves that are inside of another one's
    sub-problem are left out.

    >>> split_tree(np.array([[1, 0], [-1, 1], [-1, -1]], dtype=np.int8))
    ([0, 1, -1, -1, -1], [2, 1, 0])
    """
    walk, order = list[int](), list[int]()
    stack = [np.arange(len(signs))]
    used: list[NDArray[np.bool_]] = [np.zeros(signs.shape[1], bool)]
    while stack:
        leaves, fixed = stack.pop(), used.pop()
        left = signs[leaves] * ~fixed
        done = ~left.any(1)
        if done.any():
            walk.append(-1)
            order.append(int(leaves[done.argmax()]))
            continue
        everywhere = (left != 0).all(0) & (left > 0).any(0) & (left < 0).any(0)
        if not everywhere.any():
            raise BoundError("the leaves of a search do not cover it")
        unit = int(everywhere.argmax())
        walk.append(unit)
        deeper = fixed.copy()
        deeper[unit] = True
        stack += [leaves[left[:, unit] > 0], leaves[left[:, unit] < 0]]  # the negative half comes off first
        used += [deeper, deeper]
    return walk, order


def box_tree(lower: Floats, upper: Floats, whole: tuple[Floats, Floats]) -> tuple[list[int], list[float], list[int]]:
    """Return a walk of the cuts of the box ``whole`` into boxes (n, inputs), the cuts, and the boxes in its order.

    A number is the axis that is cut, the part below the cut first; -1 is a box.
    """
    walk, cuts, order = list[int](), list[float](), list[int]()
    stack = [(np.arange(len(lower)), *whole)]
    while stack:
        boxes, low, high = stack.pop()
        fits = (lower[boxes] <= low).all(1) & (upper[boxes] >= high).all(1)
        if fits.any():
            walk.append(-1)
            order.append(int(boxes[fits.argmax()]))
            continue
        axis, cut = _cut(lower[boxes], upper[boxes], low, high)
        walk.append(axis)
        cuts.append(cut)
        below, above = high.copy(), low.copy()
        below[axis], above[axis] = cut, cut
        stack.append((boxes[lower[boxes, axis] >= cut], above, high))
        stack.append((boxes[upper[boxes, axis] <= cut], low, below))
    return walk, cuts, order


def _cut(lower: Floats, upper: Floats, low: Floats, high: Floats) -> tuple[int, float]:
    """Find an axis and a place where every box lies on one side."""
    for axis in range(lower.shape[1]):
        ends = np.unique(lower[:, axis])
        for cut in ends[(ends > low[axis]) & (ends < high[axis])]:
            if ((upper[:, axis] <= cut) | (lower[:, axis] >= cut)).all():
                return axis, float(cut)
    raise BoundError("the boxes of a search do not cover it")
