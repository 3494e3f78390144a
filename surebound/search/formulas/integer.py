"""Cases over one box by a MIP solver: every case becomes an output, the smallest of its rows.

requirement: a piecewise linear network
return:      "unsat", "sat" (the caller has the point), "timeout" or "unknown", with the reason
property:    complete given time; "unsat" rests on the solver's tolerance: it is about reals, never float-sound
reference:   Tjeng et al. 2019, with the smallest of several rows encoded like a maximum
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.graph.onnx.build import ImportedNetwork, with_smallest
from surebound.interval import Interval
from surebound.region import Box
from surebound.search.formulas.problem import Problem
from surebound.search.formulas.rows import question
from surebound.search.query import Query
from surebound.search.splitting.boxes import Rows
from surebound.search.stages.programs import MixedInteger
from surebound.search.workspace import Workspace

MOST_SECONDS = 600.0


def decide_by_mip(
    problem: Problem, box: Interval, rows: Rows, deadline: float, candidate: Callable[[Tensor], bool]
) -> tuple[str, str]:
    """Is there a point of the box (1, *input) where all rows of one of N cases hold?"""
    left = min(MOST_SECONDS, deadline - time.monotonic())
    if left <= 0:
        return "timeout", ""
    if not torch.equal(rows.c.float().double(), rows.c):
        return "unknown", "coefficients that float32 cannot hold"
    count = len(rows.d)
    network = smallest_rows(problem.network, rows)
    query = Query(
        region=Box(box.lower, box.upper),
        labels=torch.tensor([count]),
        margins=torch.cat([torch.full((1, count), math.inf), torch.full((1, 1), -math.inf)], 1).double(),
        indices=torch.tensor([0]),
        seconds=left,
    )
    with Workspace(network) as workspace:
        try:
            finding = MixedInteger(seconds=left).decide(query, workspace)[0]
        except (BoundError, UnsupportedOperatorError) as error:
            return "unknown", str(error).splitlines()[0]
    if finding.witness is not None and candidate(finding.witness.unsqueeze(0)):
        return "sat", ""
    if finding.margins is not None and bool((finding.margins[:count] <= 0).all()):
        return "unsat", ""
    return ("timeout" if finding.timed_out else "unknown"), finding.detail


def smallest_rows(network: ImportedNetwork, rows: Rows) -> ImportedNetwork:
    """A network whose outputs are, case by case, the smallest row, and at the end a 0."""
    width = rows.d.shape[1]
    # Where a case has fewer rows than others, its first one is repeated.
    pick = torch.where(rows.valid, torch.arange(width).expand_as(rows.d), torch.zeros_like(rows.d).long())
    c = rows.c.gather(1, pick.unsqueeze(2).expand_as(rows.c)).flatten(0, 1)
    d, strict = rows.finite_d.gather(1, pick).flatten(), rows.strict.gather(1, pick).flatten()
    listed = question(network, c, d, strict)  # the rows one after the other, then a single 0
    return listed if width == 1 else with_smallest(listed, len(rows.d), width)
