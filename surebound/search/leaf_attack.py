"""Attacks from where a sub-problem's linear bound is largest: a few steps of gradient ascent on the reduced network."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.bounds.reduced.passes import Passes
from surebound.search.query import Query
from surebound.search.workspace import Workspace

#: How many points of a batch are climbed from, and how far of the box each step goes.
_STARTS = 8
_RATES = (0.25, 0.25, 0.125, 0.0625, 0.03)


class LeafAttack:
    """Tries points of one example; a witness is one that the network itself was run on, inside the exact region."""

    def __init__(self, query: Query, workspace: Workspace, passes: Passes) -> None:
        self._query, self._workspace, self._passes = query, workspace, passes
        #: Of the last call: the point (n,) with the largest margin that is not a witness, its target (1,), that margin.
        self.closest: tuple[Tensor, Tensor, float] | None = None

    def __call__(self, points: Tensor, target: Tensor) -> Tensor | None:
        """A witness (*input), from points (N, n) for targets (N,)."""
        passes, self.closest = self._passes, None
        x = points.to(passes.dtype)
        rows, offset = passes.outputs.up[target], passes.outputs.up_offset[target]
        width = passes.upper_end - passes.lower
        margin, inside = self._margins(x, rows, offset)
        best = margin.nan_to_num(torch.inf).argsort(descending=True, stable=True)[:_STARTS]
        x, rows, offset, inside, margin = x[best], rows[best], offset[best], inside[best], margin[best]
        target = target[best]
        for rate in (*_RATES, 0.0):
            if not bool(margin.max() <= 0):  # the reduced network errs by rounding only
                found = self._confirmed(x[margin.nan_to_num(torch.inf).argmax()])
                if found is not None:
                    return found
            self._remember(x, target, margin)
            if rate:
                moved = x + rate * width * passes.ascend(rows, inside).sign()
                x = torch.minimum(torch.maximum(moved, passes.lower), passes.upper_end)
                margin, inside = self._margins(x, rows, offset)
        return None

    def _remember(self, x: Tensor, target: Tensor, margin: Tensor) -> None:
        at = margin.nan_to_num(-torch.inf).argmax()
        if self.closest is None or float(margin[at]) > self.closest[2]:
            self.closest = x[at], target[at : at + 1], float(margin[at])

    def _margins(self, x: Tensor, rows: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        v, inside = self._passes.values(x)
        return torch.linalg.vecdot(v, rows) + offset, inside

    def _confirmed(self, x: Tensor) -> Tensor | None:
        shape = self._query.region.reference.shape[1:]
        return self._workspace.confirmed(self._query.region, self._query.labels, x.reshape(shape))
