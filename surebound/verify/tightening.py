"""The third stage of bounds for MIP and LP: after intervals and CROWN, linear programs for the few ReLUs that matter.

requirement: a network whose loose operators are piecewise linear activations; others keep their bounds
return:      bounds of every value, sound for the deployed network and never looser than CROWN's
property:    float-sound: the solver is not trusted. A program's multipliers of y >= left x and y >= right x are slopes
             of a linear bound with the program's value (Salman et al. 2019, theorem 1), which the sound pass evaluates
reference:   Tjeng et al. 2019, section 4.2 (progressive tightening); Ehlers 2017 (the relaxation)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are loaded when they are used: `sparse` takes as long as a small query
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import Soundness, no_information, round_up
from surebound.propagate.backward import Relaxed, intersect
from surebound.propagate.reduced import Reduced
from surebound.propagate.reduced_bounds import Multipliers, Passes
from surebound.propagate.reduction import reduce_relaxed
from surebound.verify.solvers import Outcome, Problem

Vector = NDArray[np.float64]
Solve = Callable[[Problem], Outcome]


def tightened_bounds(
    program: Program,
    start: Interval,
    known: dict[str, Interval],
    c: Tensor,
    count: int,
    solve: Solve,
    go_on: Callable[[], bool],
) -> dict[str, Interval]:
    """Bounds within the ``known`` ones, after linear programs for ``count`` ReLUs of a box (1, ...).

    c (S, K): the rows of the outputs that shall be proved; they say which ReLUs matter. ``go_on`` is asked before every
    program.
    """
    reduced, relaxed = reduce_relaxed(program, start, c, Soundness.DEPLOYED)
    chosen = _chosen(reduced, relaxed, count)
    if not chosen:
        return known
    programs = _Programs(chosen, solve, go_on)
    _, found = reduce_relaxed(program, start, c, Soundness.DEPLOYED, refine=programs.refine)
    bounds = dict(known)
    for name, box in found.bounds.items():
        if box.dtype.is_floating_point:
            bounds[name] = intersect(known[name], box) if name in known else box
    return bounds


def _chosen(reduced: Reduced, relaxed: Relaxed, count: int) -> dict[str, set[int]]:
    """The ReLUs where the rows' linear bounds lose most, by the value that they read: places in it.

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
class _Programs:
    """Bounds of chosen entries by two linear programs each."""

    chosen: dict[str, set[int]]
    solve: Solve
    go_on: Callable[[], bool]

    def refine(self, source: str, place: Tensor, reduced: Reduced) -> Interval:
        """Bounds (R,) of the entries at ``place``; infinite where no program was solved."""
        dtype = reduced.lower.dtype
        lower = torch.full((len(place),), -math.inf, dtype=dtype)
        upper = torch.full((len(place),), math.inf, dtype=dtype)
        wanted = self.chosen.get(source, set())
        numbers = [i for i, at in enumerate(place.tolist()) if at in wanted]
        if numbers and reduced.layers:
            relaxation = _Relaxation(reduced)
            for i in numbers:
                for end, sign in ((upper, 1), (lower, -1)):
                    if self.go_on():
                        end[i] = sign * relaxation.maximum(i, sign, self.solve)
        return Interval(lower, upper)


class _Relaxation:
    """The triangle relaxation of a reduced network: variables are its input, its ReLUs y and their inputs x."""

    def __init__(self, reduced: Reduced) -> None:
        self._passes = passes = Passes(reduced, torch.float64)
        self._slopes, self._dtype = _slopes(reduced), reduced.lower.dtype
        count = passes.unstable
        nothing, everything = np.full(count, -math.inf), np.full(count, math.inf)
        own = scipy.sparse.identity(count, format="csr")
        of_y = scipy.sparse.hstack([scipy.sparse.csr_array((count, passes.inputs)), own], format="csr")
        chord, top, bottom = (_joined(reduced, name) for name in ("chord", "top", "bottom"))
        least, most = (self._offsets(end) for end in ("low_offset", "up_offset"))
        # The two lower lines come first: their multipliers are what is wanted.
        rows = [
            (of_y, -scipy.sparse.diags(passes.least.numpy()), bottom, everything),
            (of_y, -scipy.sparse.diags(passes.steepest.numpy()), bottom, everything),
            (of_y, -scipy.sparse.diags(chord), nothing, top),
        ]
        if all(layer.low is layer.up for layer in passes.layers):
            rows.append((-self._rows("up"), own, least, most))
        else:
            rows.append((-self._rows("low"), own, least, everything))
            rows.append((-self._rows("up"), own, nothing, most))
        self._matrix = scipy.sparse.csr_array(scipy.sparse.bmat([[of_v, of_x] for of_v, of_x, _, _ in rows]))
        self._sides = np.concatenate([low for *_, low, _ in rows]), np.concatenate([up for *_, up in rows])
        free = np.full(2 * count, math.inf)
        self._lower = np.concatenate([passes.lower.numpy(), -free])
        self._upper = np.concatenate([passes.upper_end.numpy(), free])

    def _offsets(self, name: str) -> Vector:
        parts: list[Vector] = [getattr(layer, name).numpy() for layer in self._passes.layers]
        return np.concatenate(parts)

    def _rows(self, name: str) -> scipy.sparse.csr_array:
        """The rows of all layers by v = (input, y): (U, V)."""
        parts = [getattr(layer, name) for layer in self._passes.layers]
        wide = [torch.nn.functional.pad(part, (0, self._passes.columns - part.shape[1])) for part in parts]
        return scipy.sparse.csr_array(torch.cat(wide).numpy())

    def maximum(self, row: int, sign: int, solve: Solve) -> float:
        """A sound upper bound of output ``row``, or of minus it, in the network's dtype; infinite if none."""
        passes, rows = self._passes, self._passes.outputs
        a = rows.up[row] if sign > 0 else -rows.low[row]
        offset = rows.up_offset[row] if sign > 0 else -rows.low_offset[row]
        problem = self._problem(a, float(offset))
        outcome = None if problem is None else solve(problem)
        if outcome is None or outcome.row_duals is None:
            return math.inf
        duals = torch.from_numpy(np.abs(outcome.row_duals[: 2 * passes.unstable]).reshape(2, -1))
        total = duals.sum(0)
        mixed = (duals[0] * passes.least + duals[1] * passes.steepest) / total
        alphas = torch.where(total > 0, mixed, self._slopes).unsqueeze(0)
        found = passes.upper(passes.pull(a.unsqueeze(0), offset.reshape(1), _unsplit(alphas)))
        return float(round_up(no_information(found, found)[1], self._dtype))

    def _problem(self, a: Tensor, offset: float) -> Problem | None:
        inputs = self._passes.inputs
        numbers = (self._matrix.data, a.numpy(), offset, self._lower[:inputs], self._upper[:inputs])
        if not all(bool(np.isfinite(each).all()) for each in numbers):
            return None
        objective = np.zeros(self._matrix.shape[1])
        objective[: len(a)] = a.numpy()
        return Problem(
            objective=objective,
            offset=offset,
            matrix=self._matrix,
            row_lower=self._sides[0],
            row_upper=self._sides[1],
            lower=self._lower,
            upper=self._upper,
            integral=np.zeros(len(objective), dtype=bool),
        )


def _slopes(reduced: Reduced) -> Tensor:
    """The adaptive lower slopes (U,)."""
    return torch.cat([layer.slope for layer in reduced.layers]).double()


def _unsplit(alphas: Tensor) -> Multipliers:
    return Multipliers(torch.zeros(alphas.shape, dtype=torch.int8), alphas, torch.zeros_like(alphas))


def _joined(reduced: Reduced, name: str) -> Vector:
    parts: list[Vector] = [getattr(layer, name).double().numpy() for layer in reduced.layers]
    return np.concatenate(parts)
