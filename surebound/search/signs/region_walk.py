"""From linear region to linear region: where gradients lead nowhere, linear programs still find the best point.

Within the signs that a point's ReLU inputs have, the network is affine: the largest margin there is a linear program.
Its solution lies on the walls of the region; a little further along the same way is the next one. Counterexamples that
need a certain corner of a small region are found so, which ascent by steps of a fixed size jumps over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from surebound.attack.reduced import margin_at
from surebound.bounds.reduced.passes import Multipliers
from surebound.bounds.reduced.targets import Targets
from surebound.search.signs.domains import Domains
from surebound.search.signs.leaves import Solve, best_point

_REGIONS = 8  # at most, from one point
_BEYOND = 0.01  # of the way to a region's best point: how far beyond it the next region is looked for


def walk(targets: Targets, start: Tensor, case: Tensor, solve: Solve, go_on: Callable[[], bool]) -> Iterator[Tensor]:
    """Yield points (n,) with ever larger smallest rows of a case (1,), from ``start`` (n,); float64 passes."""
    passes, x, best = targets.passes, start.double(), -torch.inf
    for _ in range(_REGIONS):
        if not go_on():
            return
        point = best_point(targets, _region_of(targets, x, case), solve)
        if point is None:
            return
        margin = margin_at(passes, targets, point, case)
        if not margin > best + 1e-7:  # heuristic: when to stop
            return
        yield point
        best = margin
        further = point + _BEYOND * (point - x)
        x = torch.minimum(torch.maximum(further, passes.lower), passes.upper_end)


def _region_of(targets: Targets, x: Tensor, case: Tensor) -> Domains:
    """Return the executions whose ReLU inputs have the signs that they have at x."""
    _, inside = targets.passes.values(x.unsqueeze(0))
    nothing = torch.zeros_like(inside)
    m = Multipliers(torch.where(inside > 0, 1, -1).to(torch.int8), nothing, nothing)
    return Domains.unknown(case, targets.start(case), m)
