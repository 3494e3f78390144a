"""The cases of a formula as a question, and the stages that it is put to."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.graph import Program
from surebound.norm_ball import Ball
from surebound.numerics import Soundness
from surebound.region import Region
from surebound.search.boxes import bounds_by_box
from surebound.search.branch_and_bound import Options
from surebound.search.cases import Case, boxes_of
from surebound.search.formula import COSTLY, Certify, Judge, rows_of
from surebound.search.problem import Problem
from surebound.search.question import Cases, Confirm, Proof, Questions
from surebound.search.rule import SPLITS
from surebound.search.stages.ascent import Ascent
from surebound.search.stages.base import Stage
from surebound.search.stages.bounds import CrownBounds, IntervalBounds
from surebound.search.stages.boxes import BoundsByBox
from surebound.search.stages.branch import BranchAndBound
from surebound.search.stages.programs import MixedInteger
from surebound.search.verdicts import State, advance
from surebound.search.workspace import Workspace
from surebound.verdict import Status, Verdict


def put_to_stages(
    problem: Problem,
    members: Sequence[Case],
    judge: Judge,
    deadline: float,
    seed: int,
    stages: Sequence[str],
    tolerance: bool,
    detail: str,
    certify: Certify | None = None,
) -> Verdict:
    """Decide the cases of a formula stage by stage; see ``decide_formula``."""
    accepted = Proof.TOLERANCE if tolerance else Proof.of(problem.soundness)
    asked = FormulaCases.of(problem, members, judge)
    state = State.fresh(len(asked.tensors), detail)
    with Workspace(problem.network) as workspace:
        for step in _stages(stages, problem, certify is not None, len(asked.tensors.lower) > 1):
            left = deadline - time.monotonic()
            if left <= 0:
                state = state.late(step.name)
                break
            questions = _questions(problem, asked, state, seed, left, certify is not None)
            ((state, verdict),) = advance(step, questions, [state], workspace, accepted)
            if verdict is not None:
                if certify is not None and verdict.status is Status.ROBUST:
                    _tell(certify, asked.tensors, state)
                return verdict
            if state.timed_out == step.name:
                break
    return state.left_open()


def _tell(certify: Certify, cases: Cases, state: State) -> None:
    """Give the evidence of a proof away; without a mode if it is none of bounds."""
    mode = next((proof.mode for proof in (Proof.DEPLOYED, Proof.REAL) if state.proves(proof)), "")
    certify(cases, mode, state.evidence)


def _questions(
    problem: Problem, asked: FormulaCases, state: State, seed: int, seconds: float, certify: bool
) -> Questions:
    return Questions(
        problem.region, asked, torch.from_numpy(state.margins).unsqueeze(0), torch.zeros(1).long(),
        problem.soundness, seed, seconds, certify,
    )  # fmt: skip


def _stages(names: Sequence[str], problem: Problem, certify: bool, boxes: bool) -> list[Stage]:
    """Return the stages of these names, in the order of STAGES.

    certify: the formula has not been cut by bounds. boxes: cases have several, and it has been cut over the hull alone.
    """
    mode = problem.soundness
    chosen: list[Stage] = [IntervalBounds(), CrownBounds()] if certify and "bounds" in names else []
    if boxes and not certify and "bounds" in names:
        chosen += [BoundsByBox("interval"), BoundsByBox("crown")]
    if "attack" in names:
        chosen.insert(1 if problem.network.graph.entries > COSTLY else len(chosen), Ascent())
    splits = tuple(way for way in SPLITS if way in names)
    if "branch-and-bound" in names or splits:
        options = Options(seconds=math.inf, reals=mode is Soundness.REAL)
        chosen.append(BranchAndBound(options, () if "branch-and-bound" in names else splits))
    return [*chosen, MixedInteger()] if "mip" in names and problem.ball is None else chosen  # programs know boxes


@dataclass(frozen=True, eq=False)
class FormulaCases:
    """The cases of a formula as what is asked of one example."""

    tensors: Cases
    inner: tuple[Tensor, Tensor]  # (G, *input) each: the largest boxes of floats inside the exact ones
    judge: Judge

    @classmethod
    def of(cls, problem: Problem, members: Sequence[Case], judge: Judge) -> FormulaCases:
        """Return cases as tensors; those with the same box share it."""
        number: dict[object, int] = {}
        at = torch.tensor([number.setdefault(case.box, len(number)) for case in members])
        first: dict[int, Case] = {}
        for g, case in zip(at.tolist(), members, strict=True):
            first.setdefault(g, case)
        outer, inner = boxes_of(list(first.values()), problem)
        widest = max(1, *(len(case.rows) for case in members))
        c = torch.zeros(len(members), widest, problem.outputs, dtype=torch.float64)
        d = torch.full((len(members), widest), math.inf, dtype=torch.float64)
        places = [(i, row) for i, case in enumerate(members) for row in range(len(case.rows))]
        if places:
            i, row = torch.tensor(places).unbind(1)
            c[i, row], d[i, row] = rows_of([each for case in members for each in case.rows], problem)
        # A case without rows holds everywhere in its box.
        d[torch.tensor([not case.rows for case in members]), 0] = 1.0
        whole = problem.whole
        return cls(Cases(c, d, *outer, at, whole if isinstance(whole, Ball) else None), inner, judge)

    def bounds(self, program: Program, region: Region, method: str, mode: Soundness) -> Tensor:
        """Bound every case by its smallest row's bound: (1, N)."""
        return bounds_by_box(program, self.tensors, method, mode).unsqueeze(0)

    def cases(self, i: int, region: Region, mode: Soundness) -> Cases:
        """Return the cases."""
        return self.tensors

    def read_as(self, i: int, witness: Tensor) -> int | None:
        """Return None: a formula need not be about classes."""
        return None

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
