"""Signs over whose halves all bounds inside the network are made anew: where those are what is loose.

Branch and bound over signs (search/signs/) keeps the bounds of the whole inside the network: a split makes one ReLU
exact and no bound behind it tighter. Here a part is the executions with a few signs, and its network is bounded anew,
layer by layer, from the multipliers that bounded its whole (bounds/reduced/anew.py): one sign in the first layer makes
hundreds of bounds behind it tighter, and ReLUs that have one sign then are folded away. What is nearly proved is split
by signs in the usual way for as long as its bounds took; the rest is cut again, at the ReLU from which bounds gain most
through all layers (bounds/reduced/influence.py). Signs are demands on all values before them, and so are the rows of a
case (bounds/reduced/demands.py): bounds of the executions alone in which it holds refute a case some cuts before its
bound is 0. Whether this way is the shorter is told by its first few parts, beside what usual splits have gained so far.

property:  sound for the executions that the mode names: a ReLU's input as computed is >= 0 or <= 0, so that two halves
           cover their whole
reference: Wang et al. 2021 (beta-CROWN); Zhou et al. 2025 (bounds inside the network tightened by splits)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surebound.bounds.reduced.anew import Inner, anew
from surebound.bounds.reduced.demands import demands
from surebound.bounds.reduced.influence import influence
from surebound.bounds.reduced.narrowing import folded, with_sign
from surebound.bounds.reduced.network import Reduced
from surebound.bounds.reduced.swing import Swing
from surebound.numerics import proved
from surebound.search.branch_and_bound import Bounded, Tree, explore
from surebound.search.depth_first import DepthFirst
from surebound.search.signs.domains import Domains
from surebound.search.signs.splitter import SignSplitter

#: Steps for bounds inside: of the whole, and of a part from those of its whole.
FIRST, LATER = Swing(steps=8), Swing(steps=3, rate=0.15)

#: A part is split by signs as usual where so many cuts more like its last would prove it.
NEAR = 2.0

#: So many parts are bounded before it is said which way is the shorter, but in no more than this part of the time that
#: usual splits have taken so far: so many seconds, and so many times what bounds inside took.
FEWEST, TRIED = 3, 6
TRIAL = 0.5
PATIENCE, TIMES = 2.0, 4.0

#: Steps for bounds inside of the executions in which a case holds; so many times, as long as its bound gets this much
#: smaller; and where that failed last, parts come next whose bounds are this much smaller.
DEMANDED, ROUNDS, SMALLER, AFTER_FAILURE = Swing(steps=5), 3, 0.7, 0.75

#: Bounds inside that took more than this part of the time that is left are not made again and again.
SHARE = 1 / 16


@dataclass(frozen=True, eq=False)
class Half:
    """Open cases (N,) over the executions with a network's signs; its bounds may be of more executions."""

    reduced: Reduced
    cases: Tensor
    inner: Mapping[str, Inner]  # what bounded the whole that it was cut from
    rows: Inner | None  # and its cases
    bound: float  # of these
    depth: int = 0


class HalfSplitter(DepthFirst[Half]):
    """The parts of one reduced network; ``over`` makes the sub-problems of one."""

    def __init__(self, reduced: Reduced, cases: Tensor, over: Callable[[Reduced], SignSplitter], tree: Tree) -> None:
        super().__init__(tree)
        self._over, self._began = over, time.monotonic()
        self._whole = Half(reduced, cases, {}, None, torch.inf)
        self.bounds: list[float] = []  # of the parts so far
        self._reach = math.inf  # the largest bound of a case that its demands are likely to refute

    def root(self) -> Half:
        """Return the executions of the whole network."""
        return self._whole

    def forecast(self) -> float:
        """Estimate the seconds (log2) that a proof takes, from parts that are each a half of the one before."""
        if min(self.bounds) <= 0:
            return -math.inf
        each = (time.monotonic() - self._began) / len(self.bounds)
        return _log_seconds(each, self.bounds[0], self.bounds[-1], len(self.bounds) - 1)

    def halves(self, half: Half) -> list[Half]:
        """Bound a part anew, then by signs if that is near; return the halves of what is open."""
        began, tree = time.monotonic(), self.tree
        reduced, inner = anew(half.reduced, half.inner, FIRST, LATER)
        if any(bool((layer.lower > layer.upper).any()) for layer in reduced.layers):  # no execution has these signs
            self.bounds.append(0.0)
            tree.settle_cases(half.cases, 0.0)
            return []
        reduced = folded(reduced)
        splitter = self._over(reduced)
        start = None if half.rows is None else half.rows.start(reduced, half.cases)
        pool, found = splitter.bounded_roots(half.cases, start)
        worst = float(pool.upper.max()) if len(pool) else 0.0
        self.bounds.append(worst)
        if len(pool) and tree.witness is not None:
            return [replace(half, cases=pool.case)]
        before = tuple((layer.name, layer.place) for layer in reduced.layers)
        if len(pool):
            kept = self._not_refuted(reduced, splitter, pool, inner)
            pool, found = pool[kept], found.select(kept)
        rows = Inner(pool.case, before, pool.m)
        score = influence(reduced, found.own)
        last = not bool((score > 0).any())
        near = math.isfinite(half.bound) and worst <= NEAR * (half.bound - worst)
        if len(pool) and (last or near):
            end = torch.inf if last else 2 * time.monotonic() - began
            pool = explore(splitter, pool, tree, lambda _: time.monotonic() > end)
        if not len(pool):
            self.bounds[-1] = 0.0
        if last:
            tree.settle(pool)
        if last or not len(pool):
            return []
        cases = torch.unique(pool.case)
        index = torch.searchsorted(rows.place, cases)
        rows = replace(rows, place=cases, m=rows.m[index])
        unit, depth = int(score.argmax()), half.depth + 1
        return [Half(with_sign(reduced, unit, sign), cases, inner, rows, worst, depth) for sign in (1, -1)]

    def _not_refuted(
        self, reduced: Reduced, splitter: SignSplitter, pool: Domains, inner: Mapping[str, Inner]
    ) -> Tensor:
        """Settle the cases of a part that no execution can make hold, the smallest bound first; return the others."""
        refuted = torch.zeros(len(pool), dtype=torch.bool)
        for i in pool.upper.argsort().tolist():
            one, bound = pool[torch.tensor([i])], float(pool.upper[i])
            if not bound <= self._reach or self.tree.left <= 0:
                break
            if not self._refuted(reduced, splitter, one, inner):
                self._reach = AFTER_FAILURE * bound
                break
            refuted[i], self._reach = True, max(self._reach, bound / AFTER_FAILURE)
        self.tree.settle_cases(pool.case[refuted], 0.0)  # no more is known of their rows
        return (~refuted).nonzero()[:, 0]

    def _refuted(self, reduced: Reduced, splitter: SignSplitter, one: Domains, inner: Mapping[str, Inner]) -> bool:
        """Say whether no execution makes one case hold, by bounds inside of those that do."""
        for _ in range(ROUNDS):
            asked = demands(reduced, splitter.exact.mixed(one.case, one.weights), one.m)
            rows = Inner(one.case, tuple((layer.name, layer.place) for layer in reduced.layers), one.m)
            part, inner = anew(reduced, inner, DEMANDED, DEMANDED, asked)
            if any(bool((layer.lower > layer.upper).any()) for layer in part.layers):
                return True
            reduced = folded(part)
            splitter, before = self._over(reduced), float(one.upper)
            unknown = torch.full_like(one.upper, torch.inf)
            one = splitter.bounds_of(replace(one, m=rows.start(reduced, one.case), upper=unknown))
            if bool(proved(one.upper).all()):
                return True
            if not float(one.upper) <= SMALLER * before:
                return False
        return False


class Course:
    """How a search by signs goes, and whether halves are the shorter way; ``seconds``: what bounds inside took."""

    def __init__(self, tree: Tree, seconds: float, allowed: bool) -> None:
        self._tree, self._seconds, self._seen = tree, seconds, tree.seen
        self._began, self._first = time.monotonic(), math.inf
        self._waits = allowed and seconds <= SHARE * tree.left

    def pay(self, pool: Bounded) -> bool:
        """Say whether to try halves now: once, when usual splits have gone on for longer than halves are likely to."""
        if math.isinf(self._first) and len(pool):
            self._first = float(pool.upper.max())
        spent = time.monotonic() - self._began
        return self._waits and math.isfinite(self._first) and spent > max(PATIENCE, TIMES * self._seconds)

    def decided(self, reduced: Reduced, pool: Domains, over: Callable[[Reduced], SignSplitter]) -> bool:
        """Try halves; settle everything that way if it is the shorter."""
        self._waits = False
        cases, spent = torch.unique(pool.case), time.monotonic() - self._began
        rounds = math.log2(max(2.0, (self._tree.seen - self._seen) / len(cases)))
        usual = _log_seconds(spent / 2**rounds, self._first, float(pool.upper.max()), rounds)
        end = time.monotonic() + TRIAL * spent
        halves, tree = HalfSplitter(reduced, cases, over, self._tree), self._tree
        tried = explore(halves, halves.roots(), tree, lambda _: len(halves.bounds) >= TRIED or time.monotonic() >= end)
        if len(tried) and not tree.over and (len(halves.bounds) < FEWEST or halves.forecast() > usual):
            return False
        halves.finish(tried)
        return True


def _log_seconds(each: float, first: float, last: float, rounds: float) -> float:
    """Return log2 of the seconds in which cuts that each took (first - last) / rounds off a bound prove it."""
    gain = (first - last) / rounds if rounds > 0 and math.isfinite(first) else 0.0
    return math.log2(each) + rounds + last / gain if gain > 0 else math.inf
