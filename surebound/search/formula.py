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
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from surebound.bounds.interval import propagate
from surebound.bounds.margins import worst_margins
from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import Soundness, strictly_above
from surebound.region import Box, Region
from surebound.search.cases import Case, cases, coefficients, ends, without
from surebound.search.problem import Problem, inner_box
from surebound.search.question import Cases, Confirm, Proof, Questions
from surebound.search.rule import SPLITS
from surebound.search.stages.ascent import Ascent
from surebound.search.stages.base import Stage
from surebound.search.verdicts import State, advance
from surebound.search.workspace import Workspace
from surebound.spec import LinearSpec
from surebound.spec.formula import Atom, Formula, as_bound, atoms
from surebound.verdict import Status, Verdict

#: The stages of a search, in their order; and ways to split, each of which stands for branch and bound.
STAGES = ("bounds", "attack", "branch-and-bound", "mip")

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
) -> Verdict:
    """Decide a formula stage by stage until ``deadline`` (time.monotonic); ``judge`` has the last word on every point.

    ``tolerance``: let a solver's answer within its tolerance count as a proof over the reals.
    """
    began = time.monotonic()
    try:
        left, detail = _cut(problem, "bounds" in stages)
    except (BoundError, UnsupportedOperatorError) as error:
        left, detail = without(problem.formula, ()), str(error).splitlines()[0]
    found = [] if left is None or problem.empty else cases(left, problem)
    if not found:
        stage = "input bounds" if problem.empty else "bounds"
        seconds, sound = time.monotonic() - began, problem.soundness is Soundness.DEPLOYED
        return Verdict(Status.ROBUST, stage, 0.0, None, seconds, sound, detail)
    accepted = Proof.TOLERANCE if tolerance else Proof.of(problem.soundness)
    asked = FormulaCases.of(problem, found, judge)
    state = State.fresh(len(asked.tensors), detail)
    with Workspace(problem.network) as workspace:
        for step in _stages(stages, problem.soundness):
            left_over = deadline - time.monotonic()
            if left_over <= 0:
                state = state.late(step.name)
                break
            questions = _questions(problem, asked, state, seed, left_over)
            ((state, verdict),) = advance(step, questions, [state], workspace, accepted)
            if verdict is not None:
                return verdict
            if state.timed_out == step.name:
                break
    return state.left_open()


def _questions(problem: Problem, asked: FormulaCases, state: State, seed: int, seconds: float) -> Questions:
    whole = problem.box(problem.lower, problem.upper)
    return Questions(
        Box(whole.lower, whole.upper), asked, torch.from_numpy(state.margins).unsqueeze(0), torch.zeros(1).long(),
        problem.soundness, seed, seconds,
    )  # fmt: skip


def _stages(names: Sequence[str], mode: Soundness) -> list[Stage]:
    """Return the stages of these names, in the order of STAGES."""
    from surebound.search.branch_and_bound import Options  # bring solvers, which most queries do not need
    from surebound.search.stages.branch import BranchAndBound
    from surebound.search.stages.programs import MixedInteger

    chosen: list[Stage] = [Ascent()] if "attack" in names else []
    splits = tuple(way for way in SPLITS if way in names)
    if "branch-and-bound" in names or splits:
        options = Options(seconds=math.inf, reals=mode is Soundness.REAL)
        chosen.append(BranchAndBound(options, () if "branch-and-bound" in names else splits))
    return [*chosen, MixedInteger()] if "mip" in names else chosen


def _cut(problem: Problem, by_bounds: bool) -> tuple[Formula | None, str]:
    """Cut from the formula what cannot hold anywhere in the problem's box; None if nothing is left of it."""
    left = without(problem.formula, ())
    if left is None or not by_bounds or problem.empty:
        return left, ""
    found = dict.fromkeys(atoms(left))
    rows = [atom for atom in found if atom.terms and as_bound(atom, problem.inputs) is None]
    if not rows:
        return left, ""
    box = problem.box(problem.lower, problem.upper)
    gone = _refuted_exactly(problem, rows, box)
    return without(left, gone | _refuted_linearly(problem, [row for row in rows if row not in gone], box)), ""


def _refuted_exactly(problem: Problem, rows: list[Atom], box: Interval) -> set[Atom]:
    """Refute by interval bounds of the outputs, in exact arithmetic: nothing is lost where nothing is rounded."""
    with torch.no_grad():
        found = propagate(problem.network.program, box, problem.soundness)
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


def _refuted_linearly(problem: Problem, rows: list[Atom], box: Interval) -> set[Atom]:
    """Refute by upper bounds of the rows themselves, the last layers merged into them, the cheap method first."""
    region, gone = Box(box.lower, box.upper), set[Atom]()
    for method in ("interval", "crown"):
        left = [row for row in rows if row not in gone]
        if not left:
            break
        upper = _row_bounds(problem.network.program, region, *_rows(left, problem), method, problem.soundness)
        gone |= {row for row, bound in zip(left, upper.tolist(), strict=True) if bound <= 0}
    return gone


def _rows(rows: Sequence[Atom], problem: Problem) -> tuple[Tensor, Tensor]:
    """Return rows as c (S, K) and d (S,) in float64, such that a row holds only where c.z + d > 0."""
    c, d = coefficients(rows, problem.columns, problem.outputs)
    strict = torch.tensor([row.strict for row in rows])
    return c, torch.where(strict, d, strictly_above(d))


def _row_bounds(
    program: Program, region: Region, c: Tensor, d: Tensor, method: str, mode: Soundness
) -> Tensor:
    """Bound rows c.z + d from above over a region of one example: (S,) float64."""
    with torch.no_grad():
        return worst_margins(program, region, spec=LinearSpec(c, d), method=method, soundness=mode)[
            0
        ].double()


@dataclass(frozen=True, eq=False)
class FormulaCases:
    """The cases of a formula as what is asked of one example."""

    tensors: Cases
    inner: tuple[
        Tensor, Tensor
    ]  # (G, *input) each: the largest boxes of float32 numbers inside the exact ones
    judge: Judge

    @classmethod
    def of(cls, problem: Problem, members: Sequence[Case], judge: Judge) -> FormulaCases:
        """Return cases as tensors; those with the same box share it."""
        boxes = list(dict.fromkeys(case.box for case in members))
        first = {box: next(case for case in members if case.box == box) for box in boxes}
        exact = [ends(first[box], problem) for box in boxes]
        outer = [problem.box(*pair) for pair in exact]
        shape = outer[0].shape
        inner = [[torch.from_numpy(end).reshape(shape) for end in inner_box(*pair)] for pair in exact]
        widest = max(1, *(len(case.rows) for case in members))
        c = torch.zeros(len(members), widest, problem.outputs, dtype=torch.float64)
        d = torch.full((len(members), widest), math.inf, dtype=torch.float64)
        for i, case in enumerate(members):
            if case.rows:
                c[i, : len(case.rows)], d[i, : len(case.rows)] = _rows(case.rows, problem)
            else:  # holds everywhere in its box
                d[i, 0] = 1.0
        number = {box: g for g, box in enumerate(boxes)}
        at = torch.tensor([number[case.box] for case in members])
        tensors = Cases(
            c, d, torch.cat([box.lower for box in outer]), torch.cat([box.upper for box in outer]), at
        )
        return cls(tensors, (torch.cat([i[0] for i in inner]), torch.cat([i[1] for i in inner])), judge)

    def bounds(self, program: Program, region: Region, method: str, mode: Soundness) -> Tensor:
        """Bound every case by its smallest row's bound, box by box: (1, N)."""
        upper = torch.full((len(self.tensors),), math.inf, dtype=torch.float64)
        for number, places in self.tensors.groups():
            part, box = self.tensors[places], self.tensors.interval(number)
            found = _row_bounds(
                program,
                Box(box.lower, box.upper),
                part.c.flatten(0, 1),
                part.finite_d.flatten(),
                method,
                mode,
            ).reshape(part.d.shape)
            upper[places] = torch.where(part.valid, found, torch.inf).amin(1)
        return upper.unsqueeze(0)

    def cases(self, i: int, region: Region, mode: Soundness) -> Cases:
        """Return the cases."""
        return self.tensors

    def confirm(self, i: int, region: Region) -> Confirm:
        """Return the check of points: moved into the inner box of that number (any: -1), and judged there."""

        def check(point: Tensor, number: int) -> Tensor | None:
            low, high = self.inner
            low, high = (
                (low[number : number + 1], high[number : number + 1])
                if number >= 0
                else (low.amin(0, keepdim=True), high.amax(0, keepdim=True))
            )
            x = torch.minimum(torch.maximum(point.detach().float().reshape(low.shape), low), high)
            return x[0] if self.judge(x) else None

        return check

    def take(self, index: Tensor) -> FormulaCases:
        """Return the same: there is one example."""
        return self
