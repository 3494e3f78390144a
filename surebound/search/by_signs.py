"""The search of one box's cases by signs of ReLU inputs, and what makes it go on over another reduction.

It begins over plain bounds inside the network. It begins again, with the cases that are still open, over rows in
float64 where bounds lack nothing but rounding (search/signs/rounding.py), and over optimised bounds inside where it
takes long (search/signs/inner.py). After these it goes on by halves, each with bounds of its own, if that is the
shorter way (search/halves.py).

reference: Wang et al. 2021 (beta-CROWN), with slopes optimised per sub-problem
"""

from __future__ import annotations

import dataclasses
import time

import torch

from surebound.graph import Program
from surebound.interval import Interval
from surebound.norm_ball import Ball
from surebound.numerics import Soundness
from surebound.search.branch_and_bound import Options, Tree, explore
from surebound.search.halves import Course
from surebound.search.question import Finding, Proof, Question
from surebound.search.rule import Budget
from surebound.search.signs.domains import Domains
from surebound.search.signs.inner import InnerBounds
from surebound.search.signs.rounding import RoundingInTheWay
from surebound.search.signs.splitter import SignSplitter
from surebound.search.workspace import Workspace


def decide_by_signs(
    number: int, question: Question, workspace: Workspace, options: Options, end: float, budget: Budget
) -> Finding:
    """Search for a proof of the question's mode over the box of that number, with all of its cases.

    If rounding forbids that, search for one over the reals in float64.
    """

    def searched(program: Program, box: Interval, mode: Soundness) -> tuple[Finding, bool]:
        tree = Tree.of(len(question.cases), end, budget)
        return SignSearch(program, box, mode, number, question, workspace, options, tree).run()

    box = question.cases.interval(number)
    found, within_rounding = searched(workspace.program(box.lower), box, question.mode)
    if not (options.reals and within_rounding) or end <= time.monotonic():
        return found
    program = workspace.wide_program(box.lower)
    if program is None:
        return found
    wide = Interval(box.lower.double(), box.upper.double())
    return searched(program, box.within(wide) if isinstance(box, Ball) else wide, Soundness.REAL)[0]


class SignSearch:
    """One search in one mode; ``number``: of the box."""

    def __init__(
        self,
        program: Program,
        box: Interval,
        mode: Soundness,
        number: int,
        question: Question,
        workspace: Workspace,
        options: Options,
        tree: Tree,
    ) -> None:
        self._tree, self._mode, self._certify = tree, mode, question.certify
        self._rest = number, question, workspace, options, tree
        self._place = program, box, mode, *self._rest
        began = time.monotonic()
        self._splitter = SignSplitter.over(*self._place)
        seconds = time.monotonic() - began
        reduced = self._splitter.reduced
        self._inner = InnerBounds(reduced, tree, seconds, question.certify)
        self._rounding = RoundingInTheWay(reduced, mode, tree, seconds)
        self._wide, self._refined = reduced.wide, False
        self._course: Course | None = None  # over optimised bounds inside
        self._halves_allowed = not question.certify and tree.budget.open >= options.domains

    def run(self) -> tuple[Finding, bool]:
        """Return what the search has shown, and whether only rounding was in its way."""
        tree = self._tree
        pool = explore(self._splitter, self._splitter.roots(), tree, self._pause)
        evidence = self._splitter.evidence()
        while len(pool) and tree.goes_on(pool):
            if self._course is not None and self._course.pay(pool):
                pool = self._by_halves(pool, self._course)
                continue
            again = torch.unique(pool.case)
            self._reduce_again(pool)
            pool = explore(self._splitter, self._splitter.roots()[again], tree, self._pause)
            later = self._splitter.evidence(tuple(self._inner.found))
            evidence |= {case: later[case] for case in again.tolist() if case in later}
        tree.settle(pool)
        found = dataclasses.replace(tree.finding(Proof.of(self._mode)), evidence=evidence)
        return found, tree.within_rounding

    def _pause(self, pool: Domains) -> bool:
        """Say, before each round, whether another way to go on is worth its cost."""
        if self._course is not None and self._course.pay(pool):
            return True
        return (not self._wide and self._rounding.pays(pool)) or (not self._refined and self._inner.pay())

    def _by_halves(self, pool: Domains, course: Course) -> Domains:
        """Try halves; go on as before if they are not the shorter way."""
        if course.decided(self._splitter.reduced, pool, lambda reduced: SignSplitter(reduced, *self._rest, False)):
            return pool[torch.arange(0)]
        return explore(self._splitter, pool, self._tree, self._pause)

    def _reduce_again(self, pool: Domains) -> None:
        """Reduce the network over rows in float64, if it is rounding that the pool lacks, or by optimised bounds."""
        if not self._wide and self._rounding.pays(pool):
            self._wide = True
        else:
            self._wide, self._refined = self._wide or self._rounding.matters(pool), True
        began, known = time.monotonic(), self._splitter.bounds
        refine = self._inner.refine if self._refined else None
        del self._splitter  # two at a time take twice the memory
        self._splitter = SignSplitter.over(*self._place, refine=refine, wide=self._wide, known=known)
        seconds = time.monotonic() - began
        if self._refined:
            self._course = Course(self._tree, seconds, self._halves_allowed)
        else:  # what has been spent was in vain for another reason
            self._inner = InnerBounds(self._splitter.reduced, self._tree, seconds, self._certify)
