"""Sub-problems by parts of the input box, for networks of few inputs: any operators, several rows at once.

requirement: few inputs (the number of boxes grows with their number)
property:    sound for the executions that the mode names; complete for rows that are not within rounding of 0
reference:   Bunel et al. 2020, section 5; mixtures as in search/mixing.py
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.attack.climb import climb, smallest_row
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.ball import outside
from surebound.bounds.linear.intermediate import relax
from surebound.certificates.evidence import BoxRecorder, Evidence
from surebound.graph import Program
from surebound.interval import Interval
from surebound.norm_ball import Ball
from surebound.numerics import proved
from surebound.region import project
from surebound.search.branch_and_bound import Tree
from surebound.search.mixing import mixed_upper
from surebound.search.question import Question
from surebound.search.rule import dear

#: Activations of a batch of boxes, which bound memory and the time of a round.
ENTRIES = 400_000

#: A box whose sides are all this much of its case's is not cut further: what it lacks is precision.
SMALLEST_SHARE = 2.0**-20  # heuristic: when to stop

#: A round of few boxes takes as long as one of this many.
SMALLEST_ROUND = 128

#: Points of a round that are checked.
_TRIES = 8


@dataclass(frozen=True, eq=False)
class Boxes:
    """N open boxes."""

    lower: Tensor  # (N, *input)
    upper_end: Tensor  # (N, *input)
    case: Tensor  # (N,)
    upper: Tensor  # (N,) float64: the bound of the whole that it was cut from, or its own

    @property
    def rounding(self) -> Tensor:
        """How much of the bounds is rounding is not known."""
        return torch.zeros_like(self.upper)

    @property
    def urgency(self) -> Tensor:
        """Take the most suspicious first: (N,)."""
        return self.upper

    def __len__(self) -> int:
        return len(self.case)

    def __getitem__(self, index: Tensor) -> Boxes:
        return Boxes(self.lower[index], self.upper_end[index], self.case[index], self.upper[index])


class InputSplitter:
    """The boxes of one question's cases."""

    def __init__(self, program: Program, question: Question, end: float) -> None:
        self._program, self._question, self._end = program, question, end
        lower, upper = question.cases.boxes
        self._least = (upper - lower).flatten(1) * SMALLEST_SHARE  # (N, n)
        self._recorder = BoxRecorder() if question.certify else None
        self._shared = max(1, len(question.cases) // len(question.cases.lower))  # cases of a box, about
        # Both halves of a box at least, so that cases that share them share the work.
        self._dear = dear(program)
        self._room = min(4096, self._shared * max(2, ENTRIES // max(1, program.graph.entries)))
        self._seconds = 0.0  # of a box in the last round
        self._cases_of_box = self._shared  # open ones, after the last round

    @property
    def at_once(self) -> int:
        """Say how many boxes to bound together: what memory and an eighth of the time that is left allow."""
        left = self._end - time.monotonic()
        if self._dear:  # whole boxes, as many as there is time for
            boxes = int(left / self._seconds) if self._seconds else 2
            return self._cases_of_box * max(1, min(boxes, 4))
        return self._room if self._room * self._seconds <= left / 8 else max(1, int(left / 8 / self._seconds))

    def evidence(self) -> dict[int, Evidence]:
        """Return what the proofs of the cases rest on, if that was to be kept."""
        count = len(self._question.cases)
        return {} if self._recorder is None else {n: self._recorder.evidence(n) for n in range(count)}

    def roots(self) -> Boxes:
        """Return the cases' own boxes; dear ones in halves, which have far fewer unstable units together."""
        cases = self._question.cases
        unknown = torch.full((len(cases),), math.inf, dtype=torch.float64)
        whole = Boxes(*cases.boxes, torch.arange(len(cases)), unknown)
        if not self._dear:
            return whole
        score = self._influence(whole)
        possible = self._possible(whole)
        axis = torch.where(possible, self._shared_score(whole, score), -1.0).argmax(1, keepdim=True)
        free = possible.any(1)
        return self.join([whole[~free], _cut(whole[free], axis[free])])

    def _influence(self, batch: Boxes) -> Tensor:
        """Return by how much each input alone moves the rows of its case, from the box's middle: (N, n)."""
        low, high = batch.lower.flatten(1), batch.upper_end.flatten(1)
        middle, count = low / 2 + high / 2, low.shape[1]
        moved = torch.zeros(len(low), count, dtype=torch.float64)
        rows = self._question.cases[batch.case].c.double()  # (N, S, K)
        for axis in ((low < high).any(0)).nonzero()[:, 0].tolist():
            ends = [middle.index_copy(1, torch.tensor([axis]), end[:, axis : axis + 1]) for end in (low, high)]
            first, second = (self._program(point.reshape(batch.lower.shape)).double() for point in ends)
            moved[:, axis] = torch.einsum("nsk,nk->ns", rows, second - first).abs().amax(1)
        return moved.nan_to_num(0.0, 0.0, 0.0)

    def goes_on(self, pool: Boxes, tree: Tree) -> bool:
        """Say, before each round, whether there is a reason to go on."""
        return tree.goes_on(pool)

    def join(self, parts: Sequence[Boxes]) -> Boxes:
        """Join several pools into one."""
        return Boxes(
            *(torch.cat([getattr(p, name) for p in parts]) for name in ("lower", "upper_end", "case", "upper"))
        )

    def advance(self, batch: Boxes, tree: Tree) -> Boxes | None:
        """Bound a batch by one pass with bounds of its own inside the network; attack and halve what is left."""
        began = time.monotonic()
        if self._dear and self._seconds > tree.left:  # no box can be bounded in it
            tree.end = began
            return batch
        tree.seen += max(len(batch), SMALLEST_ROUND)
        cases, box = self._question.cases[batch.case], self._question.cases.cut(batch.lower, batch.upper_end)
        relaxed = self._relaxed(box)
        found = relaxed.evaluate(cases.c, cases.finite_d)
        parts = _places(batch)[1] if self._dear else len(batch)
        self._seconds = (time.monotonic() - began) / parts
        a = found.form.coefficients
        mixed, weights = mixed_upper(a, found.form.offset, box, cases.valid)
        alone = torch.where(cases.valid, found.upper.double(), torch.inf).amin(1)
        upper = torch.fmin(mixed, alone)
        if relaxed.infeasible is not None:
            upper = torch.where(relaxed.infeasible, -torch.inf, upper)
        if isinstance(box, Ball):
            upper = torch.where(outside(box), -torch.inf, upper)
        batch = Boxes(batch.lower, batch.upper_end, batch.case, upper)
        done = proved(upper)
        tree.settle(batch[done])
        if self._recorder is not None:
            self._recorder.add(batch.case[done], batch.lower[done], batch.upper_end[done], weights[done])
        left = (~done).nonzero()[:, 0]
        if not len(left):
            return None
        batch = batch[left]
        self._cases_of_box = -(-len(left) // _places(batch)[1]) if self._dear else self._shared
        slope = torch.einsum("bs,sbn->bn", weights[left], a[:, left].flatten(2).double())  # (N, n)
        tree.witness = self._attacked(batch, slope.reshape(batch.lower.shape))
        return batch if tree.witness is not None else self._halves(batch, slope, tree)

    def _relaxed(self, box: Interval) -> Relaxed:
        """Relax the network over boxes (N, *input); cases that share a box share the work."""
        mode = self._question.mode
        if self._shared == 1:
            return relax(self._program, box, mode, own=True)
        ends = torch.cat([box.lower.flatten(1), box.upper.flatten(1)], 1)
        _, place = torch.unique(ends, dim=0, return_inverse=True)  # (N,)
        first = torch.full((len(ends),), len(ends)).scatter_reduce(0, place, torch.arange(len(ends)), "amin")
        first = first[: int(place.max()) + 1]
        return relax(self._program, box.take(first), mode, own=True).select(place)

    def _attacked(self, batch: Boxes, slope: Tensor) -> Tensor | None:
        cases, confirm = self._question.cases[batch.case], self._question.confirm
        corner = torch.where(slope > 0, batch.upper_end, batch.lower)
        middle = project(batch.lower / 2 + batch.upper_end / 2, batch.lower, batch.upper_end)
        points, twice = torch.cat([corner, middle]), torch.cat([cases.box, cases.box])
        value = smallest_row(self._program(points), cases.c.repeat(2, 1, 1), cases.d.repeat(2, 1))
        for i in (value >= 0).nonzero()[:_TRIES, 0].tolist():
            witness = confirm(points[i : i + 1], int(twice[i]))
            if witness is not None:
                return witness
        best = int(value.nan_to_num(-torch.inf).argmax())
        one = torch.tensor([best % len(batch)])
        rows = cases[one]
        climbed = climb(
            self._program, points[best : best + 1], batch.lower[one], batch.upper_end[one], rows.c, rows.d, self._end
        )  # fmt: skip
        found = (confirm(point, int(rows.box)) for point, _ in climbed)
        return next((witness for witness in found if witness is not None), None)

    def _halves(self, batch: Boxes, slope: Tensor, tree: Tree) -> Boxes | None:
        """Cut each box where its bound changes most, in the middle; settle, open, those too small to cut."""
        possible = self._possible(batch)
        width, steep = (batch.upper_end - batch.lower).flatten(1).double(), slope.abs()
        # Where the bound does not depend on an input at all, its relaxation may still: long sides count a little.
        # heuristic: which input to split
        score = width * (steep + 0.01 * steep.amax(1, keepdim=True)) + width * 1e-9
        score = score.nan_to_num(0.0)
        score = self._shared_score(batch, score) if self._dear else score
        axis = torch.where(possible, score, -1.0).argmax(1, keepdim=True)
        free = possible.any(1)
        tree.settle(batch[~free])
        kept = free.nonzero()[:, 0]
        if not len(kept):
            return None
        batch, axis = batch[kept], axis[kept]
        if self._dear:  # one bound for all cases of a box: they stay together
            place, parts = _places(batch)
            whole = torch.full((parts,), -math.inf, dtype=torch.float64).scatter_reduce(0, place, batch.upper, "amax")
            batch = Boxes(batch.lower, batch.upper_end, batch.case, whole[place])
        return _cut(batch, axis)

    def _possible(self, batch: Boxes) -> Tensor:
        """Say which inputs can be cut in the middle: (N, n) bool."""
        low, high = batch.lower.flatten(1), batch.upper_end.flatten(1)
        middle = low / 2 + high / 2
        return (low < middle) & (middle < high) & (high - low > self._least[batch.case])

    def _shared_score(self, batch: Boxes, score: Tensor) -> Tensor:
        """Return scores (N, n), each case's relative to its largest, summed over the cases that share a box."""
        place, _ = _places(batch)
        relative = score / score.amax(1, keepdim=True).clamp(min=1e-30)  # heuristic: which input to split
        return torch.zeros_like(relative).index_add(0, place, relative)[place]


def _places(batch: Boxes) -> tuple[Tensor, int]:
    """Number the boxes that differ: the place (N,) of each case's, and how many there are."""
    ends = torch.cat([batch.lower.flatten(1), batch.upper_end.flatten(1)], 1)
    found, place = torch.unique(ends, dim=0, return_inverse=True)
    return place, len(found)


def _cut(batch: Boxes, axis: Tensor) -> Boxes:
    """Cut boxes in the middle of one input each, axis (N, 1)."""
    low, high = batch.lower.flatten(1), batch.upper_end.flatten(1)
    middle, shape = (low / 2 + high / 2).gather(1, axis), batch.lower.shape[1:]
    return Boxes(
        torch.cat([low, low.scatter(1, axis, middle)]).reshape(-1, *shape),
        torch.cat([high.scatter(1, axis, middle), high]).reshape(-1, *shape),
        batch.case.repeat(2),
        batch.upper.nan_to_num(math.inf, math.inf).repeat(2),
    )
