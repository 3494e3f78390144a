"""Branch and bound: the one loop, over sub-problems of either kind, and the search that chooses the kind.

requirement: bounds for every operator; signs: a network whose only loose operators are ReLUs, with others it stays
             sound and may end undecided
return:      a Finding: bounds of the cases, or a witness, or why neither
property:    sound for the executions that the question names; complete for ReLU networks but for rows within rounding
             of 0
reference:   Bunel et al. 2020 (branch and bound); Wang et al. 2021 (beta-CROWN), with slopes optimised per sub-problem

A splitter knows one kind of sub-problem: the executions whose ReLU inputs have given signs (search/signs/), or a part
of the input box (search/inputs.py). It bounds a batch of them, attacks those that are not proved and cuts them in two.
A cut covers its whole, so the whole is as sound as its parts.
"""

from __future__ import annotations

import dataclasses
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
from surebound.graph import Program
from surebound.interval import Interval
from surebound.norm_ball import Ball
from surebound.numerics import Soundness, proved
from surebound.search.question import Finding, Proof, Question
from surebound.search.rule import INPUTS, PARTS, Budget, decided_by_signs, schedule, ways
from surebound.search.workspace import Workspace


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
    node: Adam = Adam(steps=16, alpha_rate=0.05, beta_rate=0.05)
    patience: Patience = Patience(steps=4, times=2.0)
    probe: Adam = Adam(steps=6, alpha_rate=0.05, beta_rate=0.05)
    candidates: int = 8
    solver: str = "highs"
    reals: bool = False

    def __post_init__(self) -> None:
        if not self.seconds >= 0 or min(self.domains, self.batch, self.candidates) < 1:
            raise InputError(f"{self}: seconds must be >= 0; domains, batch and candidates must be 1 or more")


class Pool(Protocol):
    """Open sub-problems of one kind, N of them."""

    @property
    def case(self) -> Tensor:
        """The cases (N,) that they belong to."""

    @property
    def upper(self) -> Tensor:
        """Sound upper bounds (N,) of the cases' smallest rows, float64."""

    @property
    def rounding(self) -> Tensor:
        """How much of these is rounding: (N,) float64."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Tensor) -> Self: ...


P = TypeVar("P", bound=Pool)


class Splitter(Protocol[P]):
    """One kind of sub-problem."""

    @property
    def at_once(self) -> int:
        """Say how many sub-problems to bound together."""

    def roots(self) -> P:
        """Return the cases themselves."""

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

    def settle(self, done: Pool) -> None:
        """Note the bounds of sub-problems that need no more work; NaN is no bound."""
        upper = done.upper.double().nan_to_num(math.inf, math.inf, -math.inf)
        self.settled = self.settled.scatter_reduce(0, done.case, upper, "amax")

    def goes_on(self, pool: Pool) -> bool:
        """Is there a reason to go on: no witness, time, room, and more than rounding in the way?"""
        if self.witness is not None or self.left <= 0 or self.within_rounding:
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
    """Bound and cut sub-problems, the most suspicious first, until all are settled, the tree ends it or ``pause`` does.

    Returns those that are still open.
    """
    while len(pool) and tree.goes_on(pool) and not pause(pool):
        order = (pool.upper - pool.rounding).argsort(descending=True, stable=True)
        batch, rest = pool[order[: splitter.at_once]], pool[order[splitter.at_once :]]
        halves = splitter.advance(batch, tree)
        pool = rest if halves is None else splitter.join([rest, halves])
    return pool


@dataclass(frozen=True, eq=False)
class _Search:
    """One question's search by either kind of sub-problem, with one end."""

    question: Question
    workspace: Workspace
    options: Options
    end: float

    def by_inputs(self, budget: Budget) -> Finding:
        """Split boxes, those of all cases together."""
        from surebound.search.inputs import InputSplitter

        question = self.question
        tree = Tree.of(len(question.cases), self.end, budget)
        program = self.workspace.program(question.cases.lower[:1])
        splitter = InputSplitter(program, question, tree.end)
        tree.settle(explore(splitter, splitter.roots(), tree))
        return dataclasses.replace(tree.finding(Proof.of(question.mode)), evidence=splitter.evidence())

    def by_parts(self) -> Finding:
        """Split boxes of networks that are dear to bound, and signs within their parts."""
        return self._by_box(lambda number, question: self._parts(number, question))

    def by_signs(self, budget: Budget) -> Finding:
        """Split signs, box by box: each has a reduced network of its own."""
        return self._by_box(lambda number, question: self._group(number, question, budget))

    def _by_box(self, decide: Callable[[int, Question], Finding]) -> Finding:
        margins = torch.full((len(self.question.cases),), math.inf, dtype=torch.float64)
        worst = Finding(margins, Proof.DEPLOYED)
        for number, places in self.question.cases.groups():
            if self.end <= time.monotonic():  # a reduction each: many boxes would take long after the time
                return dataclasses.replace(worst, timed_out=True)
            found = decide(number, self.question[places])
            if found.margins is not None:
                margins[places] = found.margins
            evidence = {int(places[case]): each for case, each in found.evidence.items()}
            worst = dataclasses.replace(
                worst,
                evidence={**worst.evidence, **evidence},
                proof=max(worst.proof, found.proof),
                timed_out=worst.timed_out or found.timed_out,
                given_up=worst.given_up or found.given_up,
                detail=found.detail or worst.detail,
            )
            if found.witness is not None:
                return dataclasses.replace(worst, witness=found.witness)
        return worst

    def _parts(self, number: int, question: Question) -> Finding:
        from surebound.search.parts import PartSearch
        from surebound.search.signs.splitter import SignSplitter

        tree = Tree.of(len(question.cases), self.end, Budget(self.options.domains))
        box = question.cases.interval(number)
        program, rest = self.workspace.program(box.lower), (number, question, self.workspace, self.options, tree)
        # Rounding does not shrink with the parts: coefficients in float64.
        whole = SignSplitter.over(program, box, question.mode, *rest, wide=True)
        parts = PartSearch(whole.reduced, lambda reduced: SignSplitter(reduced, *rest), tree)
        parts.run(torch.arange(len(question.cases)))
        return tree.finding(Proof.of(question.mode))

    def _group(self, number: int, question: Question, budget: Budget) -> Finding:
        """Search for a proof of the question's mode; if rounding forbids that, for one over the reals in float64."""
        box = question.cases.interval(number)
        found, within_rounding = self._signs(
            number, question, self.workspace.program(box.lower), box, question.mode, budget
        )
        if not (self.options.reals and within_rounding) or self.end <= time.monotonic():
            return found
        program = self.workspace.wide_program(box.lower)
        if program is None:
            return found
        wide = Interval(box.lower.double(), box.upper.double())
        wide = box.within(wide) if isinstance(box, Ball) else wide
        return self._signs(number, question, program, wide, Soundness.REAL, budget)[0]

    def _signs(
        self,
        number: int,
        question: Question,
        program: Program,
        box: Interval,
        mode: Soundness,
        budget: Budget,
    ) -> tuple[Finding, bool]:
        from surebound.search.halves import Course
        from surebound.search.signs.inner import InnerBounds
        from surebound.search.signs.rounding import RoundingInTheWay
        from surebound.search.signs.splitter import (
            SignSplitter,  # brings solvers, which most queries do not need
        )

        tree = Tree.of(len(question.cases), self.end, budget)
        began = time.monotonic()
        place = program, box, mode, number, question, self.workspace, self.options, tree
        splitter = SignSplitter.over(*place)
        seconds = time.monotonic() - began
        inner = InnerBounds(splitter.reduced, tree, seconds, question.certify)
        rounding = RoundingInTheWay(splitter.reduced, mode, tree, seconds)
        wide, refined = splitter.reduced.wide, False
        course: Course | None = None  # over optimised bounds inside
        allowed = not question.certify and budget.open >= self.options.domains
        rest = number, question, self.workspace, self.options, tree

        def pause(pool: Pool) -> bool:
            if course is not None and course.pay(pool):
                return True
            return (not wide and rounding.pays(pool)) or (not refined and inner.pay())

        pool = explore(splitter, splitter.roots(), tree, pause)
        evidence = splitter.evidence()
        while len(pool) and tree.goes_on(pool):
            if course is not None and course.pay(pool):
                if course.decided(splitter.reduced, pool, lambda reduced: SignSplitter(reduced, *rest, False)):
                    pool = pool[torch.arange(0)]
                else:
                    pool = explore(splitter, pool, tree, pause)
                continue
            again = torch.unique(pool.case)
            wide, refined = (True, refined) if not wide and rounding.pays(pool) else (wide, True)
            began = time.monotonic()
            refine, known = inner.refine if refined else None, splitter.bounds
            del splitter  # two at a time take twice the memory
            splitter = SignSplitter.over(*place, refine=refine, wide=wide, known=known)
            if not refined:  # what has been spent was in vain for another reason
                inner = InnerBounds(splitter.reduced, tree, time.monotonic() - began, question.certify)
            course = Course(tree, time.monotonic() - began, allowed) if refined else None
            pool = explore(splitter, splitter.roots()[again], tree, pause)
            later = splitter.evidence(tuple(inner.found))
            evidence |= {case: later[case] for case in again.tolist() if case in later}
        tree.settle(pool)
        found = dataclasses.replace(tree.finding(Proof.of(mode)), evidence=evidence)
        return found, tree.within_rounding


def search(question: Question, workspace: Workspace, options: Options, splits: tuple[str, ...] = ()) -> Finding:
    """Decide one question by branch and bound; ``splits`` names ways to split instead of the rule (search/rule.py)."""
    budget = min(options.seconds, question.seconds)
    if budget <= 0:
        return Finding(timed_out=True)
    if not len(question.cases):
        return Finding(question.margins, Proof.DEPLOYED)
    program = workspace.program(question.cases.lower[:1])  # traced once: no example's time
    end, known = time.monotonic() + budget, Finding()
    several = len(torch.unique(question.cases.box)) > 1
    rest = torch.arange(len(question.cases))  # over several boxes, what is proved is left out
    with torch.no_grad():
        planned = schedule(splits) if splits else ways(program, question, options.domains)
        for way, most in planned:
            if end <= time.monotonic():
                return dataclasses.replace(known, timed_out=True)
            found = _by(way, most, program, _Search(question[rest], workspace, options, end))
            known = _better(known, _among(found, rest, len(question.cases)))
            if found.witness is not None or found.timed_out or _all_proved(known):
                return known
            if way != INPUTS and not found.given_up and decided_by_signs(program):
                return known  # what signs leave open there is within rounding: no boxes settle that
            if several and known.margins is not None:
                rest = (~proved(known.margins)).nonzero()[:, 0]
    return known


def _by(way: str, most: Budget, program: Program, run: _Search) -> Finding:
    """Search in one way, as far as its budget goes."""
    if way == INPUTS and most is PARTS and not run.question.certify and run.question.cases.ball is None:
        return run.by_parts()
    if way == INPUTS:
        return run.by_inputs(most.beside(len(run.question.cases)))
    return run.by_signs(dataclasses.replace(most, open=min(most.open, run.options.domains)))


def _among(found: Finding, places: Tensor, count: int) -> Finding:
    """Return a finding about the cases of some places as one about all of them."""
    if found.margins is None or len(places) == count:
        return found
    margins = torch.full((count,), math.inf, dtype=torch.float64)
    margins[places] = found.margins.double()
    evidence = {int(places[case]): each for case, each in found.evidence.items()}
    return dataclasses.replace(found, margins=margins, evidence=evidence)


def _all_proved(finding: Finding) -> bool:
    return finding.margins is not None and bool(proved(finding.margins).all())


def _better(known: Finding, found: Finding) -> Finding:
    """Return the later finding, with the smaller bounds of either where both rest on the same."""
    if found.margins is None:
        return dataclasses.replace(found, margins=known.margins, proof=known.proof, evidence=known.evidence)
    if known.margins is None or known.proof is not found.proof:
        return found
    before = {case: each for case, each in known.evidence.items() if bool(known.margins[case] <= 0)}
    margins = torch.fmin(known.margins, found.margins)
    return dataclasses.replace(found, margins=margins, evidence={**found.evidence, **before})
