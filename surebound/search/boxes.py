"""Bounds of cases over many boxes, as disjunctions of inputs and outputs have them: many boxes at a time.

A query may ask about thousands of small boxes, each with a constraint of its own. A pass over one of them costs
little more in arithmetic than in starting it.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from surebound.bounds.margins import worst_margins
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.region import Box
from surebound.search.question import Cases
from surebound.spec import LinearSpec

#: Activations of boxes that are bounded together, which bound the memory of a pass.
ENTRIES = 8_000_000

#: Boxes of a pass at most: after each it is asked whether there is time for another.
MOST = 1024


def bounds_by_box(program: Program, cases: Cases, method: str, mode: Soundness, end: float = math.inf) -> Tensor:
    """Bound every case by its smallest row's bound over its own box: (N,); infinite what time.monotonic ``end`` cut."""
    upper = torch.full((len(cases),), math.inf, dtype=torch.float64)
    fixed = program.graph.input_shape[0] is not None
    at_once = 1 if fixed else max(1, min(MOST, ENTRIES // max(1, program.graph.entries)))
    for places in _alike(cases):  # (G, M)
        for part in torch.split(places, at_once):
            if time.monotonic() > end:
                return upper
            upper[part.flatten()] = _bounded(program, cases[part.flatten()], len(part), method, mode)
    return upper


def _alike(cases: Cases) -> list[Tensor]:
    """Return the places of cases (G, M) by box, for each number M of cases that boxes have."""
    order = cases.box.argsort(stable=True)
    _, counts = torch.unique_consecutive(cases.box[order], return_counts=True)
    groups = torch.split(order, counts.tolist())
    return [torch.stack([g for g in groups if len(g) == size]) for size in sorted(set(counts.tolist()))]


def _bounded(program: Program, cases: Cases, boxes: int, method: str, mode: Soundness) -> Tensor:
    """Bound cases, as many of each of the boxes, one box after the other: (N,)."""
    first = torch.arange(0, len(cases), len(cases) // boxes)
    lower, upper = cases[first].boxes
    c, d = (each.reshape(boxes, -1, *each.shape[2:]) for each in (cases.c, cases.finite_d))
    with torch.no_grad():
        found = worst_margins(program, Box(lower, upper), spec=LinearSpec(c, d), method=method, soundness=mode)
    rows = found.double().reshape(cases.d.shape)
    return torch.where(cases.valid, rows, torch.inf).amin(1)


def varying_most(cases: Cases) -> int:
    """Count the inputs that vary in the box in which most do."""
    used = torch.unique(cases.box)
    box = Interval(cases.lower[used], cases.upper[used])
    return int((box.upper > box.lower).flatten(1).sum(1).max())
