"""Attacks on a reduced network, from where a sub-problem's linear bound is largest (bounds/reduced/)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from surebound.attack.climb import ascent
from surebound.bounds.linear.ball import ball_corner
from surebound.bounds.reduced.passes import Passes
from surebound.bounds.reduced.targets import Targets

#: How many points of a batch are climbed from, and how far of the box each step goes.
_STARTS = 8
_RATES = (0.25, 0.25, 0.125, 0.0625, 0.03)


class ReducedAttack:
    """Tries points of one example; a witness is one that the network itself was run on, inside the exact region."""

    def __init__(self, targets: Targets, confirm: Callable[[Tensor], Tensor | None]) -> None:
        self._targets, self._passes, self._confirm = targets, targets.passes, confirm
        #: Of the last call: the point (n,) with the largest margin that is not a witness, its case (1,), that margin.
        self.closest: tuple[Tensor, Tensor, float] | None = None

    def __call__(self, points: Tensor, case: Tensor) -> Tensor | None:
        """Return a witness (*input), from points (N, n) for cases (N,)."""
        passes, self.closest = self._passes, None
        x = points.to(passes.dtype)
        margin, _, _ = self._margins(x, case)
        best = margin.nan_to_num(torch.inf).argsort(descending=True, stable=True)[:_STARTS]
        x, case = x[best], case[best]

        def climbed(x: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
            margin, row, inside = self._margins(x, case)
            return margin, lambda: passes.ascend(row, inside)

        ends = (passes.lower.expand_as(x), passes.upper_end.expand_as(x))
        farthest = None if passes.ball is None else partial(ball_corner, ball=passes.ball)
        for points, margin in ascent(climbed, x, *ends, _RATES, math.inf, farthest):
            if not bool(margin.max() <= 0):  # the reduced network errs by rounding only
                found = self._confirm(points[margin.nan_to_num(torch.inf).argmax()])
                if found is not None:
                    return found
            self._remember(points, case, margin)
        return None

    def _remember(self, x: Tensor, case: Tensor, margin: Tensor) -> None:
        at = margin.nan_to_num(-torch.inf).argmax()
        if self.closest is None or float(margin[at]) > self.closest[2]:
            self.closest = x[at], case[at : at + 1], float(margin[at])

    def _margins(self, x: Tensor, case: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the cases' smallest rows (N,), these rows (N, V), and the ReLUs' inputs (N, U)."""
        v, inside = self._passes.values(x)
        margin, row = self._targets.smallest(v, case)
        return margin, row, inside


def margin_at(passes: Passes, targets: Targets, x: Tensor, case: Tensor) -> float:
    """Return a case's (1,) smallest row at a point (n,), but for rounding."""
    v, _ = passes.values(x.unsqueeze(0))
    return float(targets.smallest(v, case)[0])
