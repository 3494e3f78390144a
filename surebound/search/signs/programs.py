"""What linear programs do for a search: walk from region to region, and bound the sub-problems that ascent cannot."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from surebound.attack.reduced import ReducedAttack
from surebound.bounds.reduced.targets import Targets
from surebound.numerics import proved
from surebound.search.signs.domains import Domains
from surebound.search.signs.leaves import Solve
from surebound.search.signs.region_walk import walk
from surebound.search.signs.relaxation import Optimum, optimum

_WALKS = 0.25  # of the time
#: Of the time, for programs of sub-problems: where none of them proves one, and where all do.
_LEAST, _MOST = 0.1, 0.5
_TRIED = 8  # so many programs tell whether most of them prove something


class Programs:
    """The linear programs of one example's search, each kind for a share of its time; float64 passes.

    ``witness`` is set as soon as an attack from one of their solutions succeeds.
    """

    def __init__(self, targets: Targets, attack: ReducedAttack, solve: Solve, left: Callable[[], float]) -> None:
        self._targets, self._attack, self._solve, self._left = targets, attack, solve, left
        self._began, self._walking, self._solving = time.monotonic(), 0.0, 0.0  # seconds
        self._solved, self._closed = 0, 0
        self._whole: set[int] = set()  # cases whose whole problem has had its program
        self.first = False  # most programs proved what ascent could not: they come before every cut
        self.witness: Tensor | None = None

    def walk(self) -> None:
        """Search around the last attack's closest point."""
        began = time.monotonic()
        if self._attack.closest is None or self._walking > _WALKS * (began - self._began):
            return
        x, case, _ = self._attack.closest
        self._search_from(x, case)
        self._walking += time.monotonic() - began

    def bound(self, batch: Domains, own: Tensor, gaps: Tensor) -> tuple[Domains, Tensor, Tensor]:
        """Tighten the bounds of sub-problems, the largest first while there is time.

        Return also their gaps (N, U), and the coefficients of ReLU inputs (N, U) that gave a bound; NaN where none did.
        """
        upper, gaps, through = batch.upper.clone(), gaps.clone(), torch.full(own.shape, torch.nan, dtype=torch.float64)
        for i in batch.upper.argsort(descending=True, stable=True).unsqueeze(1):
            began = time.monotonic()
            if self.witness is not None or self._left() <= 0 or self._solving > self._share(began):
                break
            known = self._program(batch[i], own[i])
            self._solved += 1
            if known is not None:
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
            if whole is not None:
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
        for point in walk(self._targets, x, case, self._solve, lambda: self._left() > 0):
            self.witness = self._attack(point.unsqueeze(0), case)
            if self.witness is not None:
                return
