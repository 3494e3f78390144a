"""Decide whether a formula can hold: cut it by bounds, multiply the rest out into cases, put these to the stages.

requirement: linear constraints; bounds for every operator of the network
return:      Verdict: FALSIFIED with the point where the formula holds, ROBUST if it holds nowhere
property:    sound: ROBUST rests on bounds with outward rounding for the executions that the problem names; on a
             solver's tolerance only for who allows it
reference:   Bunel et al. 2020, Wang et al. 2021 (branch and bound); Tjeng et al. 2019 (MIP)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor

from surebound.bounds.interval import propagate
from surebound.bounds.linear.alpha import Adam
from surebound.bounds.linear.crown import Crown
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.margins import worst_margins
from surebound.certificates.evidence import Evidences
from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.graph import Graph, Node, Program
from surebound.interval import Interval
from surebound.numerics import Soundness, strictly_above
from surebound.region import Region
from surebound.rules import find
from surebound.search.cases import MOST_CASES, Case, cases, coefficients, count, without
from surebound.search.problem import Problem
from surebound.search.question import Cases
from surebound.search.steps import jumping
from surebound.spec import LinearSpec
from surebound.spec.formula import Atom, Formula, as_bound, atoms
from surebound.verdict import Status, Verdict

#: The stages of a search, in their order; and ways to split, each of which stands for branch and bound.
STAGES = ("bounds", "attack", "branch-and-bound", "mip")

#: Takes the cases of a formula that is proved, what the proofs hold of ("deployed", "real"; "": only
#: what a solver says), and their evidence.
Certify = Callable[[Cases, str, Evidences], None]

#: What a formula is cut by first, the cheap before the dear: bounds of outputs in exact arithmetic, bounds of rows.
CUTS = ("exact", "interval", "crown")

#: Instead of the last, where varying tensors are multiplied: which planes bound products matters most at the root.
PRODUCTS = Crown(adam=Adam(steps=40, alpha_rate=0.1), wide=True)

#: Networks whose values hold more numbers than this are attacked before the last of these is computed.
COSTLY = 100_000

#: Rows that are bounded together where the network has steps.
ROWS = 64

#: Formulas of more cases are cut before they are searched, whatever it costs.
FEW_CASES = 32

#: Formulas whose cases have more boxes of their own are not cut over all of them together.
MANY_BOXES = 8

#: A point (1, *input) of float32 numbers: does the formula hold there, by whatever the caller trusts?
Judge = Callable[[Tensor], bool]


def decide_formula(
    problem: Problem,
    judge: Judge,
    deadline: float,
    *,
    seed: int = 0,
    stages: Sequence[str] = STAGES,
    tolerance: bool = False,
    certify: Certify | None = None,
) -> Verdict:
    """Decide a formula stage by stage until ``deadline`` (time.monotonic); ``judge`` has the last word on every point.

    ``tolerance``: let a solver's answer within its tolerance count as a proof over the reals. ``certify`` is given what
    a proof rests on: then the formula is multiplied out before bounds cut it, so that every case has its evidence.
    """
    began, detail = time.monotonic(), ""
    left = None if problem.empty else without(problem.formula, ())
    finite = cache(lambda: _finite(problem))
    members: list[Case] | None = None
    cuts = CUTS if "bounds" in stages and certify is None else ()
    if cuts and left is not None and MANY_BOXES < count(left) <= min(MOST_CASES, sum(1 for _ in atoms(left))):
        members = cases(left, problem, finite)
        if len({case.box for case in members}) > MANY_BOXES:
            cuts = ()  # each is bounded over its own box, and their hull says little about any of them
    for cut in cuts:
        if left is None:
            break
        if cut == CUTS[-1] and "branch-and-bound" in stages and _split_first(problem, left):
            break
        if cut == CUTS[-1] and "attack" in stages and problem.network.graph.entries > COSTLY:
            # Here and below: it brings attacks and solvers, which most queries do not need.
            from surebound.search.formula_cases import put_to_stages

            members = cases(left, problem, finite) if members is None else members
            if not members:
                left = None
                break
            early = put_to_stages(problem, members, judge, deadline, seed, ("attack",), False, "")
            if early.status is Status.FALSIFIED:
                return early
            stages = [stage for stage in stages if stage != "attack"]
        try:
            left, members = _cut(problem, left, cut, deadline), None
        except (BoundError, UnsupportedOperatorError) as error:
            detail = str(error).splitlines()[0]
            break
    if members is None:
        members = [] if left is None else cases(left, problem, finite)
    if not members:
        stage = "input bounds" if problem.empty else "bounds"
        seconds, sound = time.monotonic() - began, problem.soundness is Soundness.DEPLOYED
        return Verdict(Status.ROBUST, stage, 0.0, None, seconds, sound, detail)
    from surebound.search.formula_cases import put_to_stages

    return put_to_stages(problem, members, judge, deadline, seed, stages, tolerance, detail, certify)


def _split_first(problem: Problem, left: Formula) -> bool:
    """Say whether the search begins with boxes of few inputs that take seconds each: the whole one is left out."""
    from surebound.search.rule import FEW_INPUTS, MANY_INPUTS, dear

    program, moving = problem.network.program, sum(a < b for a, b in zip(problem.lower, problem.upper, strict=True))
    few = FEW_INPUTS < moving <= MANY_INPUTS and program.graph.input_shape[0] is None
    return few and dear(program) and count(left) <= FEW_CASES


def _finite(problem: Problem) -> bool:
    """Say whether bounds show that every output is a number everywhere in the problem's box."""
    try:
        with torch.no_grad():
            box = problem.whole
            found = propagate(problem.network.program, box, problem.soundness)
    except (BoundError, UnsupportedOperatorError):
        return False
    return bool((found.lower.isfinite() & found.upper.isfinite()).all())


def _cut(problem: Problem, formula: Formula, method: str, deadline: float) -> Formula | None:
    """Cut from a formula what a method shows to hold nowhere in the problem's box; return None if nothing is left."""
    found = (atom for atom in atoms(formula) if atom.terms and as_bound(atom, problem.inputs) is None)
    rows = list(dict.fromkeys(found))
    if not rows:
        return formula
    box = problem.whole
    steps = jumping(problem.network.program) if method == CUTS[-1] else []
    if steps:
        refuted = _refuted_by_units(problem, formula, rows, box, steps, deadline)
    elif method == CUTS[-1] and _multiplies(problem.network.program.graph):
        refuted = _refuted(problem, rows, PRODUCTS)
    elif method == "exact":
        refuted = _refuted_exactly(problem, rows, box)
    else:
        refuted = _refuted(problem, rows, method)
    return without(formula, refuted)


def _multiplies(graph: Graph) -> bool:
    """Say whether a network multiplies varying tensors, as attention does: signs of ReLUs alone do not decide it."""

    def product(node: Node) -> bool:
        rule = find(node.op)
        return rule is not None and rule.multiplies and len(graph.varying(node)) > 1

    return bool(graph.calls(product))


def _refuted_exactly(problem: Problem, rows: list[Atom], box: Interval) -> set[Atom]:
    """Refute by interval bounds of the outputs, in exact arithmetic: nothing is lost where nothing is rounded."""
    with torch.no_grad():
        return _refuted_by_outputs(problem, rows, propagate(problem.network.program, box, problem.soundness))


def _refuted_by_units(
    problem: Problem, formula: Formula, rows: list[Atom], box: Interval, steps: list[Node], deadline: float
) -> set[Atom]:
    """Refute by CROWN, and by units that steps read, decided as long as that may refute the whole formula."""
    from surebound.search.jumps import decided_by_units  # it brings the search by signs

    program, (c, d) = problem.network.program, rows_of(rows, problem)
    with torch.no_grad():
        root = relax(program, box, problem.soundness, own=True, rows=c.unsqueeze(0))
        blocks = zip(*(torch.split(each.unsqueeze(0), ROWS, 1) for each in (c, d)), strict=True)
        upper = [root.evaluate(*block).upper[0] for block in blocks]
    refuted = {row for row, bound in zip(rows, torch.cat(upper).tolist(), strict=True) if bound <= 0}

    def settles(outputs: Interval) -> bool:
        return without(formula, refuted | _refuted_by_outputs(problem, rows, outputs)) is None

    outputs = decided_by_units(program, root, steps, settles, deadline)
    return refuted | _refuted_by_outputs(problem, rows, outputs)


def _refuted_by_outputs(problem: Problem, rows: list[Atom], found: Interval) -> set[Atom]:
    """Refute by bounds (1, K) of the outputs, in exact arithmetic."""
    sides = [end[0].double().tolist() for end in (found.lower, found.upper)]
    gone = set()
    for row in rows:
        places = [(problem.columns[element], value) for element, value in row.terms]
        used = [sides[value > 0][column] for column, value in places]
        if all(math.isfinite(end) for end in used):
            pairs = zip(places, used, strict=True)
            most = row.constant + sum(value * Fraction(end) for (_, value), end in pairs)
            if most < 0 or (row.strict and most <= 0):
                gone.add(row)
    return gone


def _refuted(problem: Problem, rows: list[Atom], method: str | Crown) -> set[Atom]:
    """Refute by upper bounds of the rows themselves, the last layers merged into them."""
    upper = row_bounds(problem.network.program, problem.region, *rows_of(rows, problem), method, problem.soundness)
    return {row for row, bound in zip(rows, upper.tolist(), strict=True) if bound <= 0}


def rows_of(rows: Sequence[Atom], problem: Problem) -> tuple[Tensor, Tensor]:
    """Return rows as c (S, K) and d (S,) in float64, such that a row holds only where c.z + d > 0."""
    c, d = coefficients(rows, problem.columns, problem.outputs)
    strict = torch.tensor([row.strict for row in rows])
    return c, torch.where(strict, d, strictly_above(d))


def row_bounds(program: Program, region: Region, c: Tensor, d: Tensor, method: str | Crown, mode: Soundness) -> Tensor:
    """Bound rows c.z + d from above over a region of one example: (S,) float64."""
    with torch.no_grad():
        return worst_margins(program, region, spec=LinearSpec(c, d), method=method, soundness=mode)[0].double()
