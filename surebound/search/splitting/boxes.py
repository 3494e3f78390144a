"""Branch and bound on the input box, for networks of few inputs: any operators, several constraints at once.

requirement: few inputs (the number of boxes grows with their number)
return:      "unsat" if every box is refuted, else why not; candidates for a witness go to the caller
property:    sound for the executions that the mode names; complete for constraints that are not within rounding of 0
reference:   Bunel et al. 2020, section 5; mixtures as in mixing.py
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.linear.intermediate import relax
from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.search.splitting.ascent import climb, project, smallest_row
from surebound.search.splitting.mixing import mixed_upper

#: Activations of a batch of boxes, which bound memory and the time of a round; open boxes that memory allows.
ENTRIES = 400_000
MOST_OPEN = 2_000_000

#: A box whose sides are all this much of its case's is not cut further: what it lacks is precision.
SMALLEST_SHARE = 2.0**-20


#: A round of few boxes takes as long as one of this many.
SMALLEST_ROUND = 128

#: Points of a round that are checked.
_TRIES = 8


@dataclass(frozen=True, eq=False)
class Rows:
    """The constraints of N cases, padded to equally many: c (N, S, K), d (N, S); ``valid`` says which there are."""

    c: Tensor
    d: Tensor  # infinite where not valid
    strict: Tensor  # (N, S) bool
    valid: Tensor  # (N, S) bool

    def __getitem__(self, index: Tensor) -> Rows:
        return Rows(self.c[index], self.d[index], self.strict[index], self.valid[index])

    def refuted(self, upper: Tensor) -> Tensor:
        """Which rows (N, S) cannot hold, by their upper bounds: below 0, or at 0 if they must be above it."""
        return ((upper < 0) | (self.strict & (upper <= 0))) & self.valid

    @property
    def finite_d(self) -> Tensor:
        """Offsets with 0 where there is no row."""
        return torch.where(self.valid, self.d, torch.zeros_like(self.d))


@dataclass(frozen=True, eq=False)
class _Pool:
    lower: Tensor  # (P, *input)
    upper: Tensor
    case: Tensor  # (P,)
    score: Tensor  # (P,): bound of the parent; larger is more suspicious

    def __len__(self) -> int:
        return len(self.case)

    def __getitem__(self, index: Tensor) -> _Pool:
        return _Pool(self.lower[index], self.upper[index], self.case[index], self.score[index])


def split_boxes(
    program: Program,
    lower: Tensor,
    upper: Tensor,
    rows: Rows,
    mode: Soundness,
    deadline: float,
    candidate: Callable[[Tensor], bool],
    most: float = math.inf,
) -> str:
    """Decide cases over boxes lower, upper (N, *input). ``candidate`` is told points and says whether to stop.

    Returns "unsat", "sat" (the caller has the point), "timeout", "unknown", or "given up" after ``most`` boxes.
    """
    pool = _Pool(lower, upper, torch.arange(len(lower)), torch.full((len(lower),), torch.inf))
    sizes = [node.shape for node in program.graph.nodes if node.shape is not None]
    entries = sum(math.prod(n or 1 for n in shape) for shape in sizes)
    at_a_time = max(1, min(4096, ENTRIES // max(1, entries)))
    stuck, seen = False, 0
    least = (upper - lower).flatten(1) * SMALLEST_SHARE
    with torch.no_grad():
        while len(pool):
            if time.monotonic() > deadline:
                return "timeout"
            if len(pool) > MOST_OPEN or seen > most:
                return "given up"
            order = pool.score.argsort(descending=True, stable=True)
            batch, pool = pool[order[:at_a_time]], pool[order[at_a_time:]]
            seen += max(len(batch), SMALLEST_ROUND)
            try:
                found = _round(program, batch, rows[batch.case], mode, deadline, candidate, least[batch.case])
            except (BoundError, UnsupportedOperatorError):
                return "unknown"
            if found is None:
                return "sat"
            halves, blocked = found
            stuck = stuck or blocked
            pool = _Pool(
                torch.cat([pool.lower, halves.lower]),
                torch.cat([pool.upper, halves.upper]),
                torch.cat([pool.case, halves.case]),
                torch.cat([pool.score, halves.score]),
            )
    return "unknown" if stuck else "unsat"


def _round(
    program: Program,
    batch: _Pool,
    rows: Rows,
    mode: Soundness,
    deadline: float,
    candidate: Callable[[Tensor], bool],
    least: Tensor,
) -> tuple[_Pool, bool] | None:
    """Bound a batch and cut what is left: the halves, and whether a box could not be cut; None: a witness."""
    box = Interval(batch.lower, batch.upper)
    relaxed = relax(program, box, mode, own=True)
    found = relaxed.evaluate(rows.c, rows.finite_d)
    done = rows.refuted(found.upper).any(1)
    a, b = found.form.coefficients, found.form.offset
    upper, weights = mixed_upper(a, b, box, rows.valid)
    done = done | (upper < 0)
    if relaxed.infeasible is not None:
        done = done | relaxed.infeasible
    left = (~done).nonzero()[:, 0]
    if not len(left):
        return batch[left], False
    batch, rows, upper = batch[left], rows[left], upper[left]
    mixed = torch.einsum("bs,sbn->bn", weights[left], a[:, left].flatten(2).double()).reshape(
        batch.lower.shape
    )
    if _attacked(program, batch, rows, mixed, deadline, candidate):
        return None
    return _halves(batch, mixed, upper, least[left])


def _attacked(
    program: Program,
    batch: _Pool,
    rows: Rows,
    mixed: Tensor,
    deadline: float,
    candidate: Callable[[Tensor], bool],
) -> bool:
    corner = torch.where(mixed > 0, batch.upper, batch.lower)
    middle = project(batch.lower / 2 + batch.upper / 2, batch.lower, batch.upper)
    points = torch.cat([corner, middle])
    value = smallest_row(program(points), rows.c.repeat(2, 1, 1), rows.d.repeat(2, 1))
    for i in (value >= 0).nonzero()[:_TRIES, 0].tolist():
        if candidate(points[i : i + 1]):
            return True
    best = int(value.nan_to_num(-torch.inf).argmax())
    one = torch.tensor([best % len(batch)])
    climbed = climb(
        program,
        points[best : best + 1],
        batch.lower[one],
        batch.upper[one],
        rows.c[one],
        rows.d[one],
        deadline,
    )
    return any(candidate(point) for point in climbed)


def _halves(batch: _Pool, mixed: Tensor, upper: Tensor, least: Tensor) -> tuple[_Pool, bool]:
    """Cut each box where its bound changes most, in the middle; least (N, n): sides that are not cut."""
    low, high = batch.lower.flatten(1), batch.upper.flatten(1)
    middle = low / 2 + high / 2
    possible = (low < middle) & (middle < high) & (high - low > least)
    width = (high - low).double()
    slope = mixed.flatten(1).abs()
    # Where the bound does not depend on an input at all, its relaxation may still: long sides count a little.
    score = width * (slope + 0.01 * slope.amax(1, keepdim=True)) + width * 1e-9
    score = torch.where(possible, score.nan_to_num(0.0), -1.0)
    axis = score.argmax(1, keepdim=True)
    free = possible.any(1)
    kept = free.nonzero()[:, 0]
    cut = middle.gather(1, axis)
    left_high, right_low = high.scatter(1, axis, cut)[kept], low.scatter(1, axis, cut)[kept]
    shape = batch.lower.shape[1:]
    halves = _Pool(
        torch.cat([low[kept], right_low]).reshape(-1, *shape),
        torch.cat([left_high, high[kept]]).reshape(-1, *shape),
        batch.case[kept].repeat(2),
        upper[kept].float().nan_to_num(torch.inf).repeat(2),
    )
    return halves, bool((~free).any())
