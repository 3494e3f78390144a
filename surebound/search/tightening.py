"""The third stage of bounds for MIP and LP: after intervals and CROWN, linear programs for the few ReLUs that matter.

requirement: a network whose loose operators are piecewise linear activations; others keep their bounds
return:      bounds of every value, sound for the deployed network and never looser than CROWN's
property:    float-sound: the solver is not trusted, a sound pass evaluates its multipliers (search/relaxation.py)
reference:   Tjeng et al. 2019, section 4.2 (progressive tightening); Ehlers 2017 (the relaxation)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.reduced.network import Reduced, Rows
from surebound.bounds.reduced.passes import Multipliers, Passes
from surebound.bounds.reduced.reduction import reduce_relaxed
from surebound.bounds.reduced.targets import Targets
from surebound.graph import Program
from surebound.interval import Interval, intersect
from surebound.numerics import Soundness, nothing_known, round_up
from surebound.search.signs.domains import Domains
from surebound.search.signs.leaves import Solve
from surebound.search.signs.relaxation import optimum


def tightened_bounds(
    program: Program,
    start: Interval,
    known: dict[str, Interval],
    c: Tensor,
    count: int,
    solve: Solve,
    go_on: Callable[[], bool],
) -> dict[str, Interval]:
    """Tighten the ``known`` bounds by linear programs for ``count`` ReLUs of a box (1, ...).

    c (S, K): the rows of the outputs that shall be proved; they say which ReLUs matter. ``go_on`` is asked before every
    program.
    """
    reduced, relaxed = reduce_relaxed(program, start, c, Soundness.DEPLOYED)
    chosen = _chosen(reduced, relaxed, count)
    if not chosen:
        return known
    programs = _BoundPrograms(chosen, solve, go_on)
    _, found = reduce_relaxed(program, start, c, Soundness.DEPLOYED, refine=programs.refine, wide=relaxed.wide)
    bounds = dict(known)
    for name, box in found.bounds.items():
        if box.dtype.is_floating_point:
            bounds[name] = intersect(known[name], box) if name in known else box
    return bounds


def _chosen(reduced: Reduced, relaxed: Relaxed, count: int) -> dict[str, set[int]]:
    """Choose the ReLUs where the rows' linear bounds lose most, by the value that they read: places in it.

    What a bound loses at a ReLU is at most its coefficient times the gap between the lines. Inputs that are affine
    in the network's own are bounded exactly already.
    """
    if not reduced.layers or not len(reduced.outputs):
        return {}
    passes = Passes(reduced, torch.float64)
    rows = passes.outputs
    own = passes.pull(rows.up, rows.up_offset, _unsplit(_slopes(reduced).expand(len(rows), -1))).own  # (S, U)
    top = torch.cat([layer.top for layer in reduced.layers]).double()
    inner = torch.cat([torch.full_like(x.place, x.rows.up.shape[1] > passes.inputs) for x in reduced.layers])
    lost = torch.where(inner.bool(), own.abs() * top, 0.0).nan_to_num(0.0, 0.0, 0.0).amax(0)  # (U,)
    best = lost.argsort(descending=True, stable=True)[:count]
    wanted = set(best[lost[best] > 0].tolist())
    chosen: dict[str, set[int]] = {}
    first = 0
    for layer in reduced.layers:
        places = {int(place) for i, place in enumerate(layer.place.tolist(), first) if i in wanted}
        if places:
            chosen.setdefault(relaxed.source(layer.name), set()).update(places)
        first += len(layer)
    return chosen


@dataclass(frozen=True, eq=False)
class _BoundPrograms:
    """Bounds of chosen entries by two linear programs each."""

    chosen: dict[str, set[int]]
    solve: Solve
    go_on: Callable[[], bool]

    def refine(self, source: str, place: Tensor, reduced: Reduced) -> Interval:
        """Bound the entries at ``place``: (R,), infinite where no program was solved."""
        wanted, dtype = self.chosen.get(source, set()), reduced.lower.dtype
        at = torch.tensor([i for i, each in enumerate(place.tolist()) if each in wanted], dtype=torch.int64)
        upper = torch.full((2, len(place)), math.inf, dtype=dtype)  # of the entries and of minus them
        if len(at) and reduced.layers:
            upper[:, at] = round_up(self._maxima(reduced, at), dtype).reshape(2, -1)
        return Interval(-upper[1], upper[0])

    def _maxima(self, reduced: Reduced, at: Tensor) -> Tensor:
        """Bound some outputs, then minus them, soundly from above: (2R,)."""
        rows = reduced.outputs.select(at)
        a, offset = torch.cat([rows.up, -rows.low]), torch.cat([rows.up_offset, -rows.low_offset])
        passes = Passes(replace(reduced, outputs=Rows(a, a, offset, offset)), torch.float64)
        m = _unsplit(_slopes(reduced).expand(len(a), -1))
        own = passes.pull(passes.outputs.up, passes.outputs.up_offset, m).own
        best = torch.full((len(a),), math.inf, dtype=torch.float64)
        targets = Targets(passes, torch.ones(len(a), 1, dtype=torch.bool))
        for i in torch.arange(len(a)).unsqueeze(1):  # (1,) each
            if not self.go_on():
                break
            found = optimum(targets, Domains.unknown(i, targets.start(i), m[i]), own[i], self.solve)
            if found is not None:
                best[i] = found.upper
        return nothing_known(best)


def _slopes(reduced: Reduced) -> Tensor:
    """Return the adaptive lower slopes (U,)."""
    return torch.cat([layer.slope for layer in reduced.layers]).double()


def _unsplit(alphas: Tensor) -> Multipliers:
    return Multipliers(torch.zeros(alphas.shape, dtype=torch.int8), alphas, torch.zeros_like(alphas))
