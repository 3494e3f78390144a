"""Cases over one box of many inputs, by branch and bound on ReLUs (``verify.branch_and_bound``).

The rows of the cases become outputs of the network, beside an output that is 0: that none of them can be >= 0 is then
the question whether that last output is the largest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.graph.onnx.build import ImportedNetwork, with_rows
from surebound.interval import Interval
from surebound.numerics import Soundness, round_up
from surebound.region import Box
from surebound.search.branch_and_bound import Options, search
from surebound.search.formulas.problem import Problem
from surebound.search.formulas.signs import MOST_OPEN, SignSearch
from surebound.search.query import Query
from surebound.search.splitting.boxes import Rows
from surebound.search.workspace import Workspace


def decide_rows(
    problem: Problem,
    box: Interval,
    rows: Rows,
    deadline: float,
    candidate: Callable[[Tensor], bool],
    most: int = MOST_OPEN,
) -> tuple[str, str]:
    """ "unsat" if no case (N of them, one box) can hold; "sat", "timeout" or "unknown", with the reason.

    "given up": more than ``most`` sub-problems were open.
    """
    single = rows.valid.sum(1) == 1
    worst, reason = "unsat", ""
    for part, several in ((single, False), (~single, True)):
        index = part.nonzero()[:, 0]
        if not len(index):
            continue
        some = rows[index]
        if several:
            found, why = _several(problem, box, some, deadline, candidate, most)
        else:  # a case's rows come first
            found, why = _decide(
                problem, box, some.c[:, 0], some.d[:, 0], some.strict[:, 0], deadline, candidate, most
            )
        if found == "sat":
            return found, ""
        if found != "unsat":
            worst, reason = found, why
    return worst, reason


def _decide(
    problem: Problem,
    box: Interval,
    c: Tensor,
    d: Tensor,
    strict: Tensor,
    deadline: float,
    candidate: Callable[[Tensor], bool],
    most: int,
) -> tuple[str, str]:
    if not torch.equal(c.float().double(), c):
        return "unknown", "coefficients that float32 cannot hold"
    network = question(problem.network, c, d, strict)
    with Workspace(network) as workspace:
        query = Query(
            region=Box(box.lower, box.upper),
            labels=torch.tensor([len(c)]),
            margins=torch.cat([torch.full((1, len(c)), math.inf), torch.full((1, 1), -math.inf)], 1).double(),
            indices=torch.tensor([0]),
            seconds=max(0.0, deadline - time.monotonic()),
        )
        try:
            about_reals = problem.soundness is Soundness.REAL
            finding = search(
                query, workspace, Options(seconds=query.seconds, reals=about_reals, domains=most)
            )[0]
        except (BoundError, UnsupportedOperatorError) as error:
            return "unknown", str(error).splitlines()[0]
        if finding.witness is not None and candidate(finding.witness.unsqueeze(0)):
            return "sat", ""
        if finding.margins is None:
            return "unknown", finding.detail
        margins = torch.fmin(query.margins, finding.margins.unsqueeze(0))
        margins[0, len(c)] = -math.inf
        if bool((margins <= 0).all()) and (finding.float_sound or about_reals):
            return "unsat", ""
        if finding.timed_out or time.monotonic() > deadline:
            return "timeout", finding.detail
        return ("given up" if finding.given_up else "unknown"), finding.detail


def question(network: ImportedNetwork, c: Tensor, d: Tensor, strict: Tensor) -> ImportedNetwork:
    """A network whose outputs are the rows and a 0. A row that may be 0 is moved up, so that <= 0 means below 0."""
    offset = round_up(d, torch.float32)
    above = torch.nextafter(offset, torch.full_like(offset, math.inf))
    least = torch.finfo(torch.float32).tiny
    offset = torch.where(strict, offset, torch.maximum(above, offset + least))
    return with_rows(
        network, torch.cat([c, torch.zeros_like(c[:1])]).float(), torch.cat([offset, offset.new_zeros(1)])
    )


def _several(
    problem: Problem,
    box: Interval,
    rows: Rows,
    deadline: float,
    candidate: Callable[[Tensor], bool],
    most: int,
) -> tuple[str, str]:
    """Cases of several rows each, which are refuted together or not at all."""
    with Workspace(problem.network) as workspace:
        try:
            search_ = SignSearch(workspace, problem.network, box, rows, problem.soundness)
            return search_.run(deadline, candidate, most), ""
        except (BoundError, UnsupportedOperatorError) as error:
            return "unknown", str(error).splitlines()[0]
