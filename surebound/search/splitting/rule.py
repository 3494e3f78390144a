"""Which way to split, inputs or ReLUs, and for how long before the other way is tried (docs/verification.md).

Splitting the input box improves every bound at once, but the number of boxes grows with the number of inputs; splitting
on signs does not care how many inputs there are. Measured by benchmarks/splitting.py.
"""

from __future__ import annotations

import math

import torch

from surebound.bounds.linear.intermediate import relax
from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import find
from surebound.rules.relax_lines import Lines

#: Networks of at most this many inputs are searched by splitting the input box first, others by splitting on ReLUs.
FEW_INPUTS = 8

#: Unless hardly any ReLU can change its sign: then there are few combinations of signs, and each is exact.
FEW_RELUS = 32

#: The two ways.
SPLITS = ("input-splitting", "relu-splitting")

#: Boxes that are bounded, and sub-problems that are open, before the other way of splitting is tried; then without end.
PATIENCE = ((8_000, 200), (math.inf, 50_000))

_RELUS = ("aten.relu.default", "aten.relu_.default")


def ways(program: Program, box: Interval, mode: Soundness) -> list[tuple[str, float]]:
    """Ways to split and how far to go: what suits the network over a box (1, *input) first, then the other."""
    return schedule(SPLITS if boxes_first(program, box, mode) else tuple(reversed(SPLITS)))


def schedule(chosen: tuple[str, ...]) -> list[tuple[str, float]]:
    """Ways in the given order, each with its patience.

    >>> schedule(("relu-splitting",))
    [('relu-splitting', 50000)]
    """
    rounds = PATIENCE if len(chosen) > 1 else PATIENCE[-1:]
    return [(way, most[SPLITS.index(way)]) for most in rounds for way in chosen]


def boxes_first(program: Program, box: Interval, mode: Soundness) -> bool:
    """The rule."""
    if box.lower[0].numel() > FEW_INPUTS:
        return False
    try:
        with torch.no_grad():
            root = relax(program, box, mode, own=True)
    except (BoundError, UnsupportedOperatorError):
        return True
    steps = [root.steps[name] for name in root.activations]
    free = [step.free for step in steps if isinstance(step, Lines) and step.free is not None]
    return sum(int(each.sum()) for each in free) > FEW_RELUS or not complete(program)


def complete(program: Program) -> bool:
    """Do signs of ReLUs decide everything? So for a network of affine operators and ReLUs alone."""
    for node in program.graph.nodes:
        if not node.varies or node.op in _RELUS or node.op == "getitem":
            continue
        rule = find(node.op)
        if rule is None or rule.activation is not None or "max" in rule.op or "min" in rule.op:
            return False
        # What can be encoded and is no activation is affine, moves entries, or chooses the largest or smallest of some.
        if rule.mip is None and rule.affine is None and not rule.also:
            return False
    return True
