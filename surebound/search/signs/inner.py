"""When a search goes on: bounds inside the network by optimised slopes, once they are worth their cost.

Most questions are decided before: by the bounds of the whole, or by a few dozen sub-problems. Those that are not gain
from tighter bounds in every sub-problem, so that their network is reduced anew, layer by layer with optimised bounds
(bounds/reduced/inner.py), and the search begins again with the cases that are still open.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from surebound.bounds.linear.intermediate import MEMORY
from surebound.bounds.reduced.inner import optimised_bounds
from surebound.bounds.reduced.network import Reduced
from surebound.bounds.reduced.swing import Swing
from surebound.certificates.evidence import InnerSlopes
from surebound.interval import Interval
from surebound.search.branch_and_bound import Tree

#: So many sub-problems come first, in a search that took so many times as long as the reduction; or so many seconds.
_AFTER = 256
_PATIENCE = 2.0
_LONG = 1.5

#: The part of the time that is left which bounds inside the network may take.
_SHARE = 0.3

_SWING = Swing(steps=12, decay=0.85)


class InnerBounds:
    """Optimised bounds of a search's network; ``seconds``: what its first reduction took.

    ``certify``: keep the slopes that bounds rest on.
    """

    def __init__(self, reduced: Reduced, tree: Tree, seconds: float, certify: bool = False) -> None:
        self._certify = certify
        self._tree, self._began, self._seconds = tree, time.monotonic(), seconds
        self._end: float | None = None
        self.found: list[InnerSlopes] = []  # what the bounds rest on
        # Inputs of the first layer are bounded exactly already.
        self._any = any(layer.rows.up.shape[1] > len(reduced.lower) for layer in reduced.layers)

    def pay(self) -> bool:
        """Say whether the search has gone on for so long that tighter bounds are worth their cost."""
        spent = time.monotonic() - self._began
        late = self._tree.seen >= _AFTER and spent >= _PATIENCE * self._seconds
        in_time = self._tree.left > _PATIENCE * self._seconds  # the network is reduced again
        return self._any and in_time and (late or spent >= max(_LONG, _PATIENCE * self._seconds))

    def refine(self, source: str, place: Tensor, reduced: Reduced) -> Interval:
        """Bound entries (R,) of a value, the outputs of a reduced network; infinite once the time for it is over."""
        if self._end is None:
            self._end = time.monotonic() + _SHARE * self._tree.left
        if not reduced.layers or time.monotonic() > self._end:
            nothing = torch.full((len(place),), math.inf, dtype=reduced.lower.dtype)
            return Interval(-nothing, nothing)
        layers = tuple((layer.name, layer.place.numpy()) for layer in reduced.layers)

        def note(slopes: Tensor) -> None:
            self.found.append(InnerSlopes(source, place.numpy(), layers, slopes.double().numpy()))

        return optimised_bounds(reduced, _SWING, MEMORY, note if self._certify else None)
