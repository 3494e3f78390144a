"""From linear region to linear region: where gradients lead nowhere, linear programs still find the best point.

Within the signs that a point's ReLU inputs have, the network is affine: the largest margin there is a linear program.
Its solution lies on the walls of the region; a little further along the same way is the next one. Counterexamples that
need a certain corner of a small region are found so, which ascent by steps of a fixed size jumps over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from surebound.bounds.reduced.passes import Multipliers, Passes
from surebound.search.domains import Domains
from surebound.search.leaves import Solve, best_point

_REGIONS = 8  # at most, from one point
_BEYOND = 0.01  # of the way to a region's best point: how far beyond it the next region is looked for


def walk(
    passes: Passes, start: Tensor, target: Tensor, solve: Solve, go_on: Callable[[], bool]
) -> Iterator[Tensor]:
    """Points (n,) with ever larger margins of a target (1,), from ``start`` (n,); float64 passes."""
    x, best = start.double(), -torch.inf
    for _ in range(_REGIONS):
        if not go_on():
            return
        point = best_point(passes, _region_of(passes, x, target), solve)
        if point is None:
            return
        margin = _margin(passes, point, target)
        if not margin > best + 1e-7:
            return
        yield point
        best = margin
        further = point + _BEYOND * (point - x)
        x = torch.minimum(torch.maximum(further, passes.lower), passes.upper_end)


def _region_of(passes: Passes, x: Tensor, target: Tensor) -> Domains:
    """The executions whose ReLU inputs have the signs that they have at x."""
    _, inside = passes.values(x.unsqueeze(0))
    signs = torch.where(inside > 0, 1, -1).to(torch.int8)
    nothing = torch.zeros_like(inside)
    unknown = torch.full((1,), torch.inf, dtype=torch.float64)
    return Domains(target, Multipliers(signs, nothing, nothing), unknown, torch.zeros_like(unknown))


def _margin(passes: Passes, x: Tensor, target: Tensor) -> float:
    v, _ = passes.values(x.unsqueeze(0))
    return float(torch.linalg.vecdot(v, passes.outputs.up[target]) + passes.outputs.up_offset[target])
