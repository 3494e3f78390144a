"""Branch and bound: the one loop, over sub-problems of any kind.

A splitter knows one kind of sub-problem: the executions whose ReLU inputs have given signs (search/signs/), a part of
the input box (search/inputs.py), or either with a network of its own (search/halves.py, search/parts.py). It bounds
some of them, attacks those that are not proved and cuts them in two. A cut covers its whole, so the whole is as sound
as its parts. search/complete.py says which kinds a question is searched by, and for how long.

reference: Bunel et al. 2020
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from surebound.bounds.linear.alpha import Adam
from surebound.bounds.reduced.descent import Patience
from surebound.errors import InputError
from surebound.numerics import proved
from surebound.search.question import Finding, Proof
from surebound.search.rule import Budget


@dataclass(frozen=True)
class Options:
    """How to search.

    seconds:    time for each example
    domains:    open sub-problems of an example beyond which it is given up
    batch:      sub-problems that are bounded at once
    root, node: optimisation of the multipliers of a whole case, and of each sub-problem
    patience: with those sub-problems that will be cut whatever their multipliers
    candidates: cuts that are tried before one is chosen, as far as a batch has room for them
    probe:      optimisation of the halves that are tried
    solver:     of the linear programs
    reals:      where only rounding forbids a proof, search for one over the reals (a Finding that is not float-sound)
    """

    seconds: float = 60.0
    domains: int = 50_000
    batch: int = 256
    root: Adam = Adam(steps=40, alpha_rate=0.1, beta_rate=0.05, decay=0.96)
    node: Adam = Adam(steps=12, alpha_rate=0.2, beta_rate=0.4, decay=0.6)
    patience: Patience = Patience(steps=2, times=2.0)
    probe: Adam = Adam(steps=2, alpha_rate=0.2, beta_rate=0.4, decay=0.6)
    candidates: int = 4
    solver: str = "highs"
    reals: bool = False

    def __post_init__(self) -> None:
        if not self.seconds >= 0 or min(self.domains, self.batch, self.candidates) < 1:
            raise InputError(f"{self}: seconds must be >= 0; domains, batch and candidates must be 1 or more")


class Pool(Protocol):
    """Open sub-problems of one kind, N of them."""

    @property
    def urgency(self) -> Tensor:
        """Which to bound first: (N,) float64, the largest."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Tensor) -> Self: ...


class Bounded(Pool, Protocol):
    """Sub-problems of which bounds are known."""

    @property
    def case(self) -> Tensor:
        """The cases (N,) that they belong to."""

    @property
    def upper(self) -> Tensor:
        """Sound upper bounds (N,) of the cases' smallest rows, float64."""

    @property
    def rounding(self) -> Tensor:
        """How much of these is rounding: (N,) float64."""


P = TypeVar("P", bound=Pool)


class Splitter(Protocol[P]):
    """One kind of sub-problem."""

    @property
    def at_once(self) -> int:
        """Say how many sub-problems to bound together."""

    def roots(self) -> P:
        """Return the cases themselves."""

    def goes_on(self, pool: P, tree: Tree) -> bool:
        """Say, before each round, whether there is a reason to go on."""

    def join(self, parts: Sequence[P]) -> P:
        """Join several pools into one."""

    def advance(self, batch: P, tree: Tree) -> P | None:
        """Bound sub-problems; settle in the tree what is proved or cannot be cut; return the halves of the others."""


@dataclass
class Tree:
    """What a search has found so far. Whatever leaves the pool is settled or cut in two."""

    settled: Tensor  # (N,) float64: the largest bound of a case's settled sub-problems
    end: float  # by time.monotonic
    budget: Budget
    witness: Tensor | None = None
    undecided: str = ""  # why it cannot be proved any more
    within_rounding: bool = False  # without rounding, it would be proved
    seen: int = 0  # sub-problems bounded so far
    given_up: bool = False
    _largest: float = field(default=math.inf, repr=False)  # bound in the pool, a round before
    _patience: float = field(default=math.inf, repr=False)  # of ``seen``, before rounding is taken for an obstacle

    @classmethod
    def of(cls, cases: int, end: float, budget: Budget) -> Tree:
        """Return the tree of a search that has not begun."""
        return cls(torch.full((cases,), -math.inf, dtype=torch.float64), end, budget)

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self.end - time.monotonic()

    @property
    def over(self) -> bool:
        """Is there a witness, no time left, or nothing but rounding in the way?"""
        return self.witness is not None or self.left <= 0 or self.within_rounding

    def settle(self, done: Bounded) -> None:
        """Note the bounds of sub-problems that need no more work; NaN is no bound."""
        upper = done.upper.double().nan_to_num(math.inf, math.inf, -math.inf)
        self.settled = self.settled.scatter_reduce(0, done.case, upper, "amax")

    def settle_cases(self, cases: Tensor, upper: float) -> None:
        """Note one bound of sub-problems of some cases (N,) that need no more work."""
        self.settled = self.settled.scatter_reduce(0, cases, torch.full((len(cases),), upper).double(), "amax")

    def goes_on(self, pool: Bounded) -> bool:
        """Is there a reason to go on: no witness, time, room, and more than rounding in the way?"""
        if self.over:
            return False
        if len(pool) > self.budget.open or self.seen > self.budget.seen:
            self.given_up = True
            self.undecided = f"more than {self.budget.open} sub-problems are open"
            return False
        largest = float(pool.upper.max())
        gained = largest <= (1 - self.budget.gain) * self._largest
        if self.budget.gain and math.isfinite(self._largest) and not gained:
            self.given_up = True
            self.undecided = f"cuts lower the largest bound from {self._largest:.3g} to {largest:.3g} only"
            return False
        self._largest = largest
        if not bool((pool.upper <= pool.rounding).all()):
            self._patience = math.inf
        elif math.isinf(self._patience):
            self._patience = 2 * self.seen + 64  # as many again may still help
        elif self.seen > self._patience:
            self.within_rounding = True
            self.undecided = f"bounds are {float(pool.upper.max()):.3g}, all of it rounding: no float-sound proof"
        return not self.within_rounding

    def finding(self, proof: Proof) -> Finding:
        """Return what the search has shown."""
        late = self.left <= 0 and not bool(proved(self.settled).all())
        return Finding(self.settled, proof, self.witness, late, self.given_up, self.undecided)


def never(pool: Pool) -> bool:
    """Go on."""
    return False


def explore(splitter: Splitter[P], pool: P, tree: Tree, pause: Callable[[P], bool] = never) -> P:
    """Bound and cut sub-problems, the most urgent first, until all are settled, the splitter or ``pause`` ends it.

    Returns those that are still open.
    """
    while len(pool) and splitter.goes_on(pool, tree) and not pause(pool):
        order = pool.urgency.argsort(descending=True, stable=True)
        batch, rest = pool[order[: splitter.at_once]], pool[order[splitter.at_once :]]
        halves = splitter.advance(batch, tree)
        pool = rest if halves is None else splitter.join([rest, halves])
    return pool
