"""From findings to verdicts: the only place that says "robust" or "falsified".

A bound proves only if ``<= 0`` is True; a witness counts only after its re-run inside the exact region; bounds of every
float32 execution, over the reals, and within a solver's tolerance are kept apart.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.certificates.evidence import Evidences
from surebound.norm_ball import NormBall
from surebound.region import LinfBall
from surebound.search.labels import Labels
from surebound.search.question import Finding, Proof, Questions
from surebound.search.record import Record
from surebound.search.stages.base import Stage
from surebound.search.workspace import Workspace
from surebound.verdict import Status, Verdict

#: Regions around an image that are given by a radius.
SizedRegion = LinfBall | NormBall


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """What is known of one question on its way through stages: plain arrays, so that it travels between machines."""

    bounds: NDArray[np.float64]  # (3, N): the smallest upper bounds of the cases, by what they hold of (Proof)
    times: tuple[tuple[str, float], ...] = ()
    stage: str = ""  # the last stage that looked at it
    timed_out: str = ""  # the stage that ran out of time
    detail: str = ""
    evidence: Evidences = ()  # of the cases proved so far

    @classmethod
    def fresh(cls, cases: int, detail: str = "") -> State:
        """Return the state of a question of which nothing is known."""
        return cls(np.full((len(Proof), cases), math.inf), detail=detail)

    @property
    def margins(self) -> NDArray[np.float64]:
        """Return the smallest upper bounds (N,) of any kind."""
        found: NDArray[np.float64] = self.bounds[Proof.TOLERANCE]
        return found

    @property
    def distance(self) -> float:
        """Return the sum of the margins above 0 that are known: how far the question is from a proof."""
        return float(self.margins[np.isfinite(self.margins)].clip(min=0).sum())

    @property
    def seconds(self) -> float:
        """Return the time spent on it so far."""
        return sum(spent for _, spent in self.times)

    def late(self, stage: str) -> State:
        """Return the state after time ended before a stage could begin."""
        return dataclasses.replace(self, stage=stage, timed_out=stage)

    def merged(self, finding: Finding, stage: str, seconds: float) -> State:
        """Return what is known after a stage: the smaller bound wins, NaN never does."""
        bounds = self.bounds
        if finding.margins is not None:
            new = finding.margins.detach().double().numpy()
            # What holds of more holds of less: a proof counts for itself and for all that are weaker.
            better = np.arange(len(Proof))[:, None] >= int(finding.proof)
            bounds = np.where(better, np.fmin(bounds, new), bounds)
        news = (bounds[Proof.TOLERANCE] <= 0) & ~(self.bounds[Proof.TOLERANCE] <= 0)
        found = tuple((int(case), finding.rests_on(int(case), stage)) for case in news.nonzero()[0])
        return dataclasses.replace(
            self,
            bounds=bounds,
            times=(*self.times, (stage, seconds)),
            stage=stage,
            timed_out=stage if finding.timed_out else self.timed_out,
            detail=finding.detail or self.detail,
            evidence=(*self.evidence, *found),
        )

    def proves(self, proof: Proof) -> bool:
        """Is no case left that could hold, by bounds of that kind?"""
        return bool((self.bounds[proof] <= 0).all())

    @property
    def bound(self) -> float:
        """Return the bound of the worst case; NaN if one of them is."""
        return float(self.margins.max()) if self.margins.size else -math.inf

    def left_open(self, failure: tuple[str, str] | None = None) -> Verdict:
        """Return the verdict on a question that no stage decided; ``failure``: a stage that broke on it, and why."""
        status, stage, detail = Status.UNKNOWN, self.stage, self.detail
        if failure is not None:
            status, (stage, detail) = Status.ERROR, failure
        elif self.timed_out:
            status, stage = Status.TIMEOUT, self.timed_out
        elif self.proves(Proof.TOLERANCE):
            detail = "proved only within a solver's tolerance" + (f"; {detail}" if detail else "")
        bound = self.bound if self.margins.size else math.inf
        return Verdict(status, stage, bound, seconds=self.seconds, detail=detail)


class StageFailure(Exception):
    """A stage raised; the cause says what. Never a verdict: the unit of work turns it into ERROR."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"the stage {stage!r} failed")
        self.stage = stage


def advance(
    stage: Stage,
    questions: Questions,
    states: Sequence[State],
    workspace: Workspace,
    accepted: Proof = Proof.TOLERANCE,
) -> list[tuple[State, Verdict | None]]:
    """Put open questions to one stage: their states after it, and the verdicts on those that it decided.

    ``accepted``: the weakest kind of bound that counts as a proof.
    """
    start = time.perf_counter()
    findings = stage.decide(questions, workspace)
    share = (time.perf_counter() - start) / max(1, len(states))
    found = []
    for i, (state, finding) in enumerate(zip(states, findings, strict=True)):
        after = state.merged(finding, stage.name, share)
        if questions.certify and after.proves(accepted):
            after = _certified(after, questions, i, workspace)
        found.append((after, _verdict(after, finding, stage.name, questions, i, accepted)))
    return found


def _certified(state: State, questions: Questions, i: int, workspace: Workspace) -> State:
    """Prove cases once more that a stage proved in a way that no certificate covers, by branch and bound."""
    from surebound.search.stages.branch import BranchAndBound, again

    missing = [case for case, each in state.evidence if not each.by]
    if not missing or any(stage == BranchAndBound.name for stage, _ in state.times):
        return state
    margins = torch.full_like(questions.margins, -math.inf)
    margins[i, missing] = math.inf
    start = time.perf_counter()
    finding = again(dataclasses.replace(questions, margins=margins), i, workspace)
    if finding.margins is None:
        return state
    after = state.merged(finding, BranchAndBound.name, time.perf_counter() - start)
    proved = (finding.margins <= 0).tolist()
    evidence = tuple(
        (case, finding.rests_on(case) if not each.by and proved[case] else each) for case, each in state.evidence
    )
    return dataclasses.replace(state, bounds=after.bounds, times=after.times, evidence=evidence)


def _verdict(
    state: State, finding: Finding, stage: str, questions: Questions, i: int, accepted: Proof
) -> Verdict | None:
    if finding.witness is not None:
        check = questions.asked.confirm(i, questions.region)
        witness = check(finding.witness.unsqueeze(0), -1)
        if witness is not None:
            read_as = questions.asked.read_as(i, witness)
            return Verdict(
                Status.FALSIFIED, stage, state.bound, witness, state.seconds, float_sound=True, read_as=read_as
            )
    if not state.proves(accepted):
        return None
    sound = state.proves(Proof.DEPLOYED)
    detail = "" if state.proves(Proof.REAL) else "within the solver's tolerance"
    return Verdict(Status.ROBUST, stage, state.bound, None, state.seconds, sound, detail)


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """One image's question on its way through a cascade: plain arrays and numbers, so that it travels."""

    index: int
    image: NDArray[np.float32]  # (C, H, W)
    label: int
    eps: Fraction
    digest: str
    prediction: int = -1
    state: State | None = None  # None: nothing yet
    failure: tuple[str, str] | None = None  # the last stage that failed on it, and why

    def record(self, verdict: Verdict) -> Record:
        """Return the line for the store."""
        if self.state is None:
            return Record(self.index, self.label, self.prediction, self.eps, verdict, self.digest)
        state, mode = self.state, Proof.DEPLOYED if self.state.proves(Proof.DEPLOYED) else Proof.REAL
        proof = (mode, state.evidence) if state.proves(mode) else None
        return Record(self.index, self.label, self.prediction, self.eps, verdict, self.digest, state.times, proof)

    def left_open(self) -> Record:
        """Return the record of an example that no stage decided."""
        state = State.fresh(0) if self.state is None else self.state
        return self.record(state.left_open(self.failure))

    def failed(self, stage: str, reason: str) -> Example:
        """Return the example after a stage broke on it: unless a later one decides it, it ends as an ERROR."""
        return dataclasses.replace(self, failure=(stage, reason))


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is the same for all examples of a run."""

    clip: tuple[float, float] | None = (0.0, 1.0)
    seed: int = 0
    timeout: float = math.inf  # seconds per example and stage, on top of the stages' own limits
    certify: bool = False  # keep what proofs rest on
    kind: SizedRegion | None = None  # what the regions are like, of no examples; None: balls of one radius, inside clip

    def region(self, images: Tensor, eps: Fraction) -> SizedRegion:
        """Return the region around images (B, ...) that is asked about."""
        return LinfBall(images, eps, self.clip) if self.kind is None else self.kind.around(images, eps)


def decide(
    stages: Sequence[Stage], examples: Sequence[Example], setting: Setting, workspace: Workspace
) -> tuple[list[Record], list[Example]]:
    """Take examples of one radius through stages: the records of those decided, and the others, with what is known."""
    try:
        batch = _prepared(list(examples), workspace)
    except Exception as error:
        raise StageFailure("clean") from error
    records: list[Record] = []
    for stage in stages:
        if not batch:
            break
        states = [_known(example) for example in batch]
        try:
            results = advance(stage, _questions(batch, setting, workspace), states, workspace)
        except Exception as error:
            raise StageFailure(stage.name) from error
        open_ones = []
        for example, (state, verdict) in zip(batch, results, strict=True):
            example = dataclasses.replace(example, state=state)
            if verdict is None:
                open_ones.append(example)
            else:
                records.append(example.record(verdict))
        batch = open_ones
    return records, batch


def _prepared(batch: list[Example], workspace: Workspace) -> list[Example]:
    """Give examples that have none their predictions, and room for bounds."""
    fresh = [example for example in batch if example.state is None]
    if not fresh:
        return batch
    logits = workspace.logits(torch.stack([torch.from_numpy(example.image) for example in fresh]))
    ready = {}
    for example, k in zip(fresh, logits.argmax(1).tolist(), strict=True):
        state = State.fresh(logits.shape[1])
        state.bounds[:, example.label] = -math.inf  # nothing is asked of the label's own class
        ready[example.index] = dataclasses.replace(example, prediction=k, state=state)
    return [ready.get(example.index, example) for example in batch]


def _questions(batch: list[Example], setting: Setting, workspace: Workspace) -> Questions:
    images = torch.stack([torch.from_numpy(example.image) for example in batch])
    labels = torch.tensor([example.label for example in batch])
    margins = torch.tensor(np.stack([_known(example).margins for example in batch]))
    predictions = torch.tensor([example.prediction for example in batch])
    return Questions(
        region=setting.region(images, batch[0].eps),
        asked=Labels(workspace, labels, predictions, margins.shape[1]),
        margins=margins,
        indices=torch.tensor([example.index for example in batch]),
        seed=setting.seed,
        seconds=setting.timeout,
        certify=setting.certify,
    )


def _known(example: Example) -> State:
    if example.state is None:
        raise ValueError("an example without bounds: it has not been prepared")
    return example.state


def example_of(index: int, image: Tensor, label: int, eps: Fraction, digest: str) -> Example:
    """Return a fresh question about an image (C, H, W)."""
    return Example(index, image.detach().cpu().contiguous().numpy(), label, eps, digest)
