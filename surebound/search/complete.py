"""The complete search of one question: one kind of sub-problem after the other, over each of its boxes.

requirement: bounds for every operator; signs: a network whose only loose operators are ReLUs, with others it stays
             sound and may end undecided; ranges: many inputs do not matter, they may end undecided
return:      a Finding: bounds of the cases, or a witness, or why neither
property:    sound for the executions that the question names; complete for ReLU networks but for rows within rounding
             of 0
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.numerics import proved
from surebound.search.branch_and_bound import Options, Tree, explore
from surebound.search.by_signs import decide_by_signs
from surebound.search.inputs import InputSplitter
from surebound.search.parts import PartSplitter
from surebound.search.question import Finding, Proof, Question
from surebound.search.ranges.splitter import RangeSplitter
from surebound.search.rule import INPUTS, PARTS, RANGES, SIGNS, Budget, decided_by_signs, schedule, ways
from surebound.search.signs.splitter import SignSplitter
from surebound.search.workspace import Workspace


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
            found = _by(way, most, Searcher(question[rest], workspace, options, end))
            known = _better(known, _among(found, rest, len(question.cases)))
            if found.witness is not None or found.timed_out or _all_proved(known):
                return known
            if way == SIGNS and not found.given_up and decided_by_signs(program):
                return known  # what signs leave open there is within rounding: no boxes settle that
            if several and known.margins is not None:
                rest = (~proved(known.margins)).nonzero()[:, 0]
    return known


@dataclass(frozen=True, eq=False)
class Searcher:
    """One question's search by any kind of sub-problem, with one end."""

    question: Question
    workspace: Workspace
    options: Options
    end: float

    def by_inputs(self, budget: Budget) -> Finding:
        """Split boxes, those of all cases together."""
        question = self.question
        tree = Tree.of(len(question.cases), self.end, budget)
        program = self.workspace.program(question.cases.lower[:1])
        splitter = InputSplitter(program, question, tree.end)
        tree.settle(explore(splitter, splitter.roots(), tree))
        return dataclasses.replace(tree.finding(Proof.of(question.mode)), evidence=splitter.evidence())

    def by_parts(self) -> Finding:
        """Split boxes of networks that are dear to bound, and signs within their parts."""
        return self._by_box(self._parts)

    def by_signs(self, budget: Budget) -> Finding:
        """Split signs, box by box: each has a reduced network of its own."""
        rest = self.workspace, self.options, self.end, budget
        return self._by_box(lambda number, question: decide_by_signs(number, question, *rest))

    def by_ranges(self, budget: Budget) -> Finding:
        """Split ranges of values inside the network, box by box."""
        return self._by_box(lambda number, question: self._ranges(number, question, budget))

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

    def _ranges(self, number: int, question: Question, budget: Budget) -> Finding:
        tree = Tree.of(len(question.cases), self.end, budget)
        box = question.cases.interval(number)
        splitter = RangeSplitter(self.workspace.program(box.lower), box, number, question, self.options, tree)
        tree.settle(explore(splitter, splitter.roots(), tree))
        return tree.finding(Proof.of(question.mode))

    def _parts(self, number: int, question: Question) -> Finding:
        tree = Tree.of(len(question.cases), self.end, Budget(self.options.domains))
        box = question.cases.interval(number)
        program, rest = self.workspace.program(box.lower), (number, question, self.workspace, self.options, tree)
        # Rounding does not shrink with the parts: coefficients in float64.
        whole = SignSplitter.over(program, box, question.mode, *rest, wide=True).reduced
        cases = torch.arange(len(question.cases))
        parts = PartSplitter(whole, cases, lambda reduced: SignSplitter(reduced, *rest), tree)
        parts.finish(parts.roots())
        return tree.finding(Proof.of(question.mode))


def _by(way: str, most: Budget, run: Searcher) -> Finding:
    """Search in one way, as far as its budget goes."""
    if way == INPUTS and most is PARTS and not run.question.certify and run.question.cases.ball is None:
        return run.by_parts()
    if way == INPUTS:
        return run.by_inputs(most.beside(len(run.question.cases)))
    most = dataclasses.replace(most, open=min(most.open, run.options.domains))
    return run.by_ranges(most) if way == RANGES else run.by_signs(most)


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
