"""Boxes of few inputs of a network that is dear to bound: one reduction, then parts of the box and signs within them.

The network is reduced over the whole box once. Over a part of the box the reduced network is bounded anew and shrinks
(bounds/reduced/narrowing.py), at a small part of the cost of bounds of the network itself. As long as cuts of the box
gain much, boxes are cut; then bounds inside are optimised, and what that leaves open is split by signs for as long as
its bounds took, then cut again.

requirement: few inputs (the number of parts grows with their number)
property:    sound for the executions that the mode names: the parts cover the box
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.reduced.narrowing import folded, narrowed
from surebound.bounds.reduced.network import Reduced
from surebound.bounds.reduced.passes import Pass
from surebound.bounds.reduced.swing import Swing
from surebound.search.branch_and_bound import Tree, explore
from surebound.search.depth_first import DepthFirst
from surebound.search.signs.domains import Domains
from surebound.search.signs.splitter import SignSplitter

#: A cut that takes off at least this part of the largest bound is worth another before bounds inside are optimised.
GAIN = 0.4

#: A part whose sides are all this much of the box's is not cut further.
SMALLEST_SHARE = 2.0**-20  # heuristic: when to stop

SWING = Swing(steps=8)


@dataclass(frozen=True, eq=False)
class Part:
    """Open cases (N,) over a part of a box, and the reduced network of a box around it."""

    reduced: Reduced
    lower: Tensor  # (n,)
    upper: Tensor
    cases: Tensor
    bound: float  # of the whole that it was cut from
    optimise: bool  # were bounds inside optimised there?
    depth: int = 0


class PartSplitter(DepthFirst[Part]):
    """The parts of one box; ``over`` makes the sub-problems of a reduced network."""

    def __init__(self, reduced: Reduced, cases: Tensor, over: Callable[[Reduced], SignSplitter], tree: Tree) -> None:
        super().__init__(tree)
        self._over, self._whole = over, Part(reduced, reduced.lower, reduced.upper, cases, torch.inf, False)
        self._least = (reduced.upper - reduced.lower) * SMALLEST_SHARE

    def root(self) -> Part:
        """Return the whole box."""
        return self._whole

    def halves(self, part: Part) -> list[Part]:
        """Bound a part, by signs too if it was not cut for more; return the halves of what is open."""
        began = time.monotonic()
        optimise = part.optimise
        reduced = self._reduced(part, SWING if optimise else None)
        splitter = self._over(reduced)
        pool, found = splitter.bounded_roots(part.cases)
        worst = float(pool.upper.max()) if len(pool) else -torch.inf
        if len(pool) and not optimise and self.tree.witness is None and worst > (1 - GAIN) * part.bound:
            optimise = True
            splitter = self._over(folded(narrowed(reduced, part.lower, part.upper, SWING)))
            pool, found = splitter.bounded_roots(pool.case)
        if not len(pool):
            return []
        axis = self._axis(splitter.reduced, found)
        if optimise and self.tree.witness is None:
            end = torch.inf if axis is None else 2 * time.monotonic() - began
            pool = explore(splitter, pool, self.tree, lambda _: time.monotonic() > end)
            if not len(pool):
                return []
        if axis is None:
            self.tree.settle(pool)
            return []
        return self._cut(splitter.reduced, pool, axis, optimise, part.depth + 1)

    def _reduced(self, part: Part, swing: Swing | None) -> Reduced:
        if part is self._whole:
            return part.reduced
        return folded(narrowed(part.reduced, part.lower, part.upper, swing))

    def _axis(self, reduced: Reduced, found: Pass) -> int | None:
        """Return the input whose range widens the ReLUs' inputs most, weighed by what bounds make of them."""
        width = (reduced.upper - reduced.lower).double()
        middle = reduced.lower / 2 + reduced.upper / 2
        possible = (reduced.lower < middle) & (middle < reduced.upper) & (width > self._least)
        if not bool(possible.any()):
            return None
        # heuristic: which input to split
        score, first = found.a.abs().sum(0) * width, 0
        for layer in reduced.layers:
            weight = found.own[:, first : first + len(layer)].abs().sum(0)
            score = score + weight @ layer.rows.up[:, : len(width)].abs().double() * width
            first += len(layer)
        return int(torch.where(possible, score.nan_to_num(0.0), -1.0).argmax())

    def _cut(self, reduced: Reduced, pool: Domains, axis: int, optimise: bool, depth: int) -> list[Part]:
        """Cut a part in the middle of one input."""
        middle = reduced.lower[axis] / 2 + reduced.upper[axis] / 2
        at, cases = torch.tensor([axis]), torch.unique(pool.case)
        worst = float(pool.upper.max())
        low = reduced.lower.index_fill(0, at, middle)
        high = reduced.upper.index_fill(0, at, middle)
        return [
            Part(reduced, reduced.lower, high, cases, worst, optimise, depth),
            Part(reduced, low, reduced.upper, cases, worst, optimise, depth),
        ]
