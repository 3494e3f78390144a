"""Branch and bound for networks of few inputs: boxes or signs of ReLUs first, by the rule that queries go by, too.

requirement: bounds for every operator; for boxes, any number of examples at a time
return:      a Finding
property:    boxes: float-sound; signs: as search/branch_and_bound.py
reference:   search/splitting/rule.py (the rule), search/splitting/boxes.py (boxes)
"""

from __future__ import annotations

import dataclasses
import math
import time

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.search.branch_and_bound import Options, search
from surebound.search.query import Finding, Query
from surebound.search.splitting.boxes import Rows, split_boxes
from surebound.search.splitting.rule import SPLITS, complete, schedule, ways
from surebound.search.workspace import Workspace


def decide_few(query: Query, workspace: Workspace, options: Options, chosen: tuple[str, ...] = ()) -> Finding:
    """Decide one example; ``chosen`` names ways to split instead of the rule."""
    end = time.monotonic() + min(options.seconds, query.seconds)
    box = query.region.interval(Soundness.DEPLOYED)
    program = workspace.program(query.region.reference)
    known = Finding()
    for way, most in schedule(chosen) if chosen else ways(program, box, Soundness.DEPLOYED):
        left = end - time.monotonic()
        if left <= 0:
            return dataclasses.replace(known, timed_out=True)
        if way == SPLITS[0]:
            found = _by_boxes(query, workspace, box, end, most)
            if found is None:
                continue
            return found
        domains = min(options.domains, int(most))
        known = search(
            dataclasses.replace(query, seconds=left), workspace, dataclasses.replace(options, domains=domains)
        )[0]
        # Where signs decide everything, what they leave open is within rounding: no boxes settle that.
        if known.witness is not None or known.timed_out or _proved(known, query):
            return known
        if not known.given_up and complete(program):
            return known
    return known


def _proved(finding: Finding, query: Query) -> bool:
    if finding.margins is None:
        return False
    return bool((finding.margins[query.open_rows[0]] <= 0).all())


def _by_boxes(query: Query, workspace: Workspace, box: Interval, end: float, most: float) -> Finding | None:
    """One case per open class: its margin is above 0. None: undecided after ``most`` boxes, or within rounding."""
    program = workspace.program(query.region.reference)
    classes = query.open_rows[0].nonzero()[:, 0]
    found: list[Tensor] = []

    def breaks(point: Tensor) -> bool:
        witness = workspace.confirmed(query.region, query.labels, point[0])
        if witness is not None:
            found.append(witness)
        return witness is not None

    some = torch.ones(len(classes), 1, dtype=torch.bool)
    rows = Rows(query.spec.c[0, classes].double().unsqueeze(1), torch.zeros(some.shape).double(), some, some)
    low, high = (torch.cat([side] * len(classes)) for side in (box.lower, box.upper))
    answer = split_boxes(program, low, high, rows, Soundness.DEPLOYED, end, breaks, most)
    if answer == "sat":
        return Finding(witness=found[-1])
    if answer == "unsat":
        margins = torch.full((query.margins.shape[1],), math.inf, dtype=torch.float64)
        margins[classes] = 0.0
        return Finding(margins, float_sound=True)
    return Finding(timed_out=True) if answer == "timeout" else None
