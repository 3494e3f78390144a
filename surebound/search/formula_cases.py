"""The cases of a formula as a question, and the stages that it is put to."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.graph import Program
from surebound.numerics import Soundness
from surebound.region import Box, Region
from surebound.search.branch_and_bound import Options
from surebound.search.cases import Case, ends
from surebound.search.formula import Certify, Judge, row_bounds, rows_of
from surebound.search.problem import Problem, inner_box
from surebound.search.question import Cases, Confirm, Proof, Questions
from surebound.search.rule import SPLITS
from surebound.search.stages.ascent import Ascent
from surebound.search.stages.base import Stage
from surebound.search.stages.bounds import CrownBounds, IntervalBounds
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
        for step in _stages(stages, problem.soundness, certify is not None):
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
    whole = problem.box(problem.lower, problem.upper)
    return Questions(
        Box(whole.lower, whole.upper), asked, torch.from_numpy(state.margins).unsqueeze(0), torch.zeros(1).long(),
        problem.soundness, seed, seconds, certify,
    )  # fmt: skip


def _stages(names: Sequence[str], mode: Soundness, certify: bool) -> list[Stage]:
    """Return the stages of these names, in the order of STAGES; bounds have cut the formula unless it is to certify."""
    chosen: list[Stage] = [IntervalBounds(), CrownBounds()] if certify and "bounds" in names else []
    chosen += [Ascent()] if "attack" in names else []
    splits = tuple(way for way in SPLITS if way in names)
    if "branch-and-bound" in names or splits:
        options = Options(seconds=math.inf, reals=mode is Soundness.REAL)
        chosen.append(BranchAndBound(options, () if "branch-and-bound" in names else splits))
    return [*chosen, MixedInteger()] if "mip" in names else chosen


@dataclass(frozen=True, eq=False)
class FormulaCases:
    """The cases of a formula as what is asked of one example."""

    tensors: Cases
    inner: tuple[Tensor, Tensor]  # (G, *input) each: the largest boxes of floats inside the exact ones
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
                c[i, : len(case.rows)], d[i, : len(case.rows)] = rows_of(case.rows, problem)
            else:  # holds everywhere in its box
                d[i, 0] = 1.0
        number = {box: g for g, box in enumerate(boxes)}
        at = torch.tensor([number[case.box] for case in members])
        tensors = Cases(c, d, torch.cat([box.lower for box in outer]), torch.cat([box.upper for box in outer]), at)
        return cls(tensors, (torch.cat([i[0] for i in inner]), torch.cat([i[1] for i in inner])), judge)

    def bounds(self, program: Program, region: Region, method: str, mode: Soundness) -> Tensor:
        """Bound every case by its smallest row's bound, box by box: (1, N)."""
        upper = torch.full((len(self.tensors),), math.inf, dtype=torch.float64)
        for number, places in self.tensors.groups():
            part, box = self.tensors[places], self.tensors.interval(number)
            found = row_bounds(
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
