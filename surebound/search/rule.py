"""Which way to split, inputs, ReLUs or any ranges, and for how long before another is tried (docs/verification.md).

Splitting the input box improves every bound at once, but the number of boxes grows with the number of inputs; splitting
on signs does not care how many inputs there are. Where it is not clear, boxes are tried for as long as every round of
them gains much. Measured by benchmarks/splitting.py.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

from surebound.bounds.linear.intermediate import relax
from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.graph import Node, Program
from surebound.rules import find
from surebound.rules.relax.lines import Lines
from surebound.search.boxes import varying_most
from surebound.search.question import Question

#: Boxes in which at most this many inputs vary are split first; others as long as that gains much, then signs.
FEW_INPUTS = 8

#: Boxes in which more inputs than this vary are not split at all.
MANY_INPUTS = 64

#: Unless hardly any ReLU can change its sign: then there are few combinations of signs, and each is exact.
FEW_RELUS = 32

#: Or more boxes than this are asked about.
MANY_BOXES = 8

#: The three ways.
INPUTS, SIGNS, RANGES = SPLITS = ("input-splitting", "relu-splitting", "range-splitting")


@dataclass(frozen=True)
class Budget:
    """How far a search goes before it gives up: sub-problems that are open at a time, and bounded in all.

    ``gain``: the part of the largest bound that every round has to take off; 0: none.
    """

    open: int
    seen: float = math.inf
    gain: float = 0.0

    def beside(self, cases: int) -> Budget:
        """Return the budget with so many sub-problems more: the cases themselves."""
        return dataclasses.replace(self, open=self.open + cases, seen=self.seen + cases)


#: Before the other way of splitting is tried; then without end.
PATIENCE = (
    {INPUTS: Budget(2_000_000, 8_000), SIGNS: Budget(200), RANGES: Budget(200)},
    {INPUTS: Budget(2_000_000), SIGNS: Budget(50_000), RANGES: Budget(50_000)},
)


#: Boxes of more than few inputs: at this rate seven rounds take off four fifths, and relaxations gain more and more.
GLIMPSE = Budget(2_000_000, 8_000, gain=0.2)


#: Boxes of networks whose values hold more numbers take seconds each (``dear``), and signs over all of the input more.
DEAR = 25_000
PARTS = Budget(2_000_000, 2_000)


def dear(program: Program) -> bool:
    """Say whether a box of a network takes seconds: it is cut before it is bounded, for all of its cases alike."""
    return program.graph.entries > DEAR


def ways(program: Program, question: Question, domains: int) -> list[tuple[str, Budget]]:
    """Return ways to split and how far to go: what suits the network over the boxes first, then the other."""
    inputs = varying_most(question.cases)
    if inputs > MANY_INPUTS or program.graph.input_shape[0] is not None:  # boxes go through the network many at a time
        return inside(program, domains)
    within = SIGNS if decided_by_signs(program) or _has_relus(program) else RANGES
    if inputs > FEW_INPUTS:
        return [(INPUTS, PARTS if dear(program) else GLIMPSE), *schedule((within, INPUTS))]
    return schedule((INPUTS, SIGNS) if boxes_first(program, question) else (SIGNS, INPUTS))


def inside(program: Program, domains: int) -> list[tuple[str, Budget]]:
    """Return ways to split values inside the network: signs alone if they decide it; ranges alone if it has no ReLU.

    Of other networks signs, which are cheaper, are tried for a while.
    """
    signs, ranges = (SIGNS, Budget(domains)), (RANGES, Budget(domains))
    if decided_by_signs(program) or program.graph.input_shape[0] is not None:  # ranges take many at a time
        return [signs]
    return [(SIGNS, PATIENCE[0][SIGNS]), ranges, signs] if _has_relus(program) else [ranges]


def _has_relus(program: Program) -> bool:
    rules = (find(node.op) for node in program.graph.calls(lambda node: node.varies))
    return any(rule is not None and rule.is_relu for rule in rules)


def schedule(chosen: tuple[str, ...]) -> list[tuple[str, Budget]]:
    """Return ways in the given order, each with its patience.

    >>> schedule(("relu-splitting",))
    [('relu-splitting', Budget(open=50000, seen=inf, gain=0.0))]
    """
    rounds = PATIENCE if len(chosen) > 1 else PATIENCE[-1:]
    return [(way, most[way]) for most in rounds for way in chosen]


def boxes_first(program: Program, question: Question) -> bool:
    """Say whether boxes suit a network better: few inputs, and more than a few ReLUs without a sign.

    Or many boxes, which are cut together: signs need a reduced network for each of them.
    """
    cases = question.cases
    if varying_most(cases) > FEW_INPUTS:
        return False
    if len(torch.unique(cases.box)) > MANY_BOXES:
        return True
    try:
        with torch.no_grad():
            root = relax(program, cases.interval(int(cases.box[0])), question.mode, own=True)
    except (BoundError, UnsupportedOperatorError):
        return True
    steps = [root.steps[name] for name in root.activations]
    free = [step.free for step in steps if isinstance(step, Lines) and step.free is not None]
    return sum(int(each.sum()) for each in free) > FEW_RELUS or not decided_by_signs(program)


def decided_by_signs(program: Program) -> bool:
    """Do signs of ReLUs decide everything? So for a network of affine operators and ReLUs alone."""
    graph = program.graph

    def curved(node: Node) -> bool:
        rule = find(node.op)
        product = rule is not None and rule.multiplies and len(graph.varying(node)) > 1
        return rule is None or product or not rule.decided_by_signs

    return not graph.calls(lambda node: node.varies and not node.is_part and curved(node))
