"""What linear programs do for a search: walk from region to region, and bound the sub-problems that ascent cannot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from surebound.attack.reduced import ReducedAttack
from surebound.bounds.reduced.targets import Targets
from surebound.numerics import proved
from surebound.search.signs.domains import Domains
from surebound.search.signs.region_walk import walk
from surebound.search.signs.relaxation import Optimum, optimum
from surebound.solvers import MathProgram, SolverOutcome

_WALKS = 0.25  # of the time
#: Of the time, for programs of sub-problems: where none of them proves one, and where all do.
_LEAST, _MOST = 0.1, 0.5
_TRIED = 8  # so many programs tell whether most of them prove something
#: Every program may take so many seconds whatever the search has taken so far; no program takes more than the other.
_FLOOR, PROGRAM_SECONDS = 0.5, 10.0
#: Programs of networks with more coefficients take minutes.
_LARGEST = 1 << 20  # heuristic: one of 400,000 takes ten seconds


#: Solves a program in so many seconds.
Limited = Callable[[MathProgram, float], SolverOutcome]


class Programs:
    """The linear programs of one example's search, each kind for a share of its time; float64 passes.

    ``witness`` is set as soon as an attack from one of their solutions succeeds.
    """

    def __init__(self, targets: Targets, attack: ReducedAttack, solve: Limited, left: Callable[[], float]) -> None:
        self._targets, self._attack, self._limited, self._left = targets, attack, solve, left
        self._began, self._walking, self._solving = time.monotonic(), 0.0, 0.0  # seconds
        self._solved, self._closed = 0, 0
        coefficients = sum(layer.up.entries for layer in targets.passes.layers)
        # Seconds: less was not enough for the last program. Without a ReLU to relax, bounds are its optimum.
        self._least = 0.0 if targets.passes.unstable and coefficients <= _LARGEST else math.inf
        self._end = math.inf  # of the walk or the program that goes on
        self._whole: set[int] = set()  # cases whose whole problem has had its program
        self.first = False  # most programs proved what ascent could not: they come before every cut
        self.witness: Tensor | None = None

    def _solve(self, problem: MathProgram) -> SolverOutcome:
        return self._limited(problem, min(PROGRAM_SECONDS, max(_FLOOR, self._end - time.monotonic())))

    def walk(self) -> None:
        """Search around the last attack's closest point."""
        began = time.monotonic()
        room = _WALKS * (began - self._began) - self._walking
        if self._attack.closest is None or room < 0 or math.isinf(self._least):
            return
        x, case, _ = self._attack.closest
        self._end = began + room
        self._search_from(x, case)
        self._walking += time.monotonic() - began

    def bound(self, batch: Domains, own: Tensor, gaps: Tensor) -> tuple[Domains, Tensor, Tensor]:
        """Tighten the bounds of sub-problems, the largest first while there is time.

        Return also their gaps (N, U), and the coefficients of ReLU inputs (N, U) that gave a bound; NaN where none did.
        """
        upper, gaps, through = batch.upper.clone(), gaps.clone(), torch.full(own.shape, torch.nan, dtype=torch.float64)
        for i in batch.upper.argsort(descending=True, stable=True).unsqueeze(1):
            began = time.monotonic()
            room = self._share(began) - self._solving
            if self.witness is not None or self._left() <= 0 or room < self._least:
                break
            self._end = began + room
            known = self._program(batch[i], own[i])
            self._solved += 1
            if known is None:  # too large for its time, most of all
                self._least = 2 * max(_FLOOR, min(room, PROGRAM_SECONDS))
            else:
                self._closed += known.upper <= 0
                upper[i] = torch.fmin(upper[i], torch.tensor([known.upper], dtype=upper.dtype))
                gaps[i], through[i] = known.gaps.to(gaps.dtype), known.through
            self._solving += time.monotonic() - began
        self.first |= self._solved >= _TRIED and 2 * self._closed > self._solved
        return replace(batch, upper=upper), gaps, through

    def _share(self, now: float) -> float:
        """Return the seconds that programs of sub-problems may have taken by now."""
        if self.first:
            return torch.inf
        rate = (self._closed + 2) / (self._solved + 2)
        return (_LEAST + (_MOST - _LEAST) * rate) * (now - self._began)

    def _program(self, one: Domains, own: Tensor) -> Optimum | None:
        """Solve one sub-problem's linear program and attack from its solution; first from that of its whole case."""
        case = int(one.case)
        if case not in self._whole:
            self._whole.add(case)
            whole = optimum(self._targets, replace(one, m=one.m.unsplit()), own, self._solve)
            if whole is None:  # it is no larger than that of a part
                return None
            self._search_from(whole.point, one.case)
        if self.witness is not None:
            return None
        known = optimum(self._targets, one, own, self._solve)
        if known is not None and not bool(proved(torch.tensor(known.upper))):
            self.witness = self._attack(known.point.unsqueeze(0), one.case)
        return known

    def _search_from(self, x: Tensor, case: Tensor) -> None:
        """Attack from a point, then from the best points of the linear regions around it."""
        self.witness = self._attack(x.unsqueeze(0), case)
        if self.witness is not None:
            return

        def go_on() -> bool:
            return self._left() > 0 and time.monotonic() < self._end

        for point in walk(self._targets, x, case, self._solve, go_on):
            self.witness = self._attack(point.unsqueeze(0), case)
            if self.witness is not None:
                return
