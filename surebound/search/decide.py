"""From findings to verdicts: the only place that says "robust" or "falsified".

A bound proves only if ``<= 0`` is True; a witness counts only after its re-run inside the exact region; bounds
that are float-sound and bounds that rest on a solver's tolerance are kept apart.
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

from surebound.region import LinfBall
from surebound.search.query import Finding, Query, without_true_class
from surebound.search.record import Record
from surebound.search.stages.base import Stage
from surebound.search.workspace import Workspace
from surebound.verdict import Status, Verdict


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """One question on its way through a cascade: plain arrays and numbers, so that it travels between machines."""

    index: int
    image: NDArray[np.float32]  # (C, H, W)
    label: int
    eps: Fraction
    digest: str
    prediction: int = -1
    sound: NDArray[np.float64] | None = None  # (K,) smallest float-sound upper bounds; None: nothing yet
    margins: NDArray[np.float64] | None = None  # (K,) smallest upper bounds of any kind
    times: tuple[tuple[str, float], ...] = ()
    stage: str = ""  # the last stage that looked at it
    timed_out: str = ""  # the stage that ran out of time
    detail: str = ""
    failure: tuple[str, str] | None = None  # the last stage that failed on it, and why

    @property
    def seconds(self) -> float:
        """Time spent on it so far."""
        return sum(spent for _, spent in self.times)

    def record(self, verdict: Verdict) -> Record:
        """The line for the store."""
        return Record(self.index, self.label, self.prediction, self.eps, verdict, self.digest, self.times)

    def left_open(self) -> Record:
        """The record of an example that no stage decided."""
        status, stage, detail = Status.UNKNOWN, self.stage, self.detail
        if self.failure is not None:
            status, (stage, detail) = Status.ERROR, self.failure
        elif self.timed_out:
            status, stage = Status.TIMEOUT, self.timed_out
        bound = math.inf if self.margins is None else _largest(self.margins)
        return self.record(Verdict(status, stage, bound, seconds=self.seconds, detail=detail))

    def failed(self, stage: str, reason: str) -> Example:
        """The example after a stage broke on it: unless a later one decides it, it ends as an ERROR."""
        return dataclasses.replace(self, failure=(stage, reason))


class StageFailure(Exception):
    """A stage raised; the cause says what. Never a verdict: the unit of work turns it into ERROR."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"the stage {stage!r} failed")
        self.stage = stage


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is the same for all examples of a run."""

    clip: tuple[float, float] | None = (0.0, 1.0)
    seed: int = 0
    timeout: float = math.inf  # seconds per example and stage, on top of the stages' own limits


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
        query = _query(batch, setting)
        start = time.perf_counter()
        try:
            findings = stage.decide(query, workspace)
        except Exception as error:
            raise StageFailure(stage.name) from error
        share = (time.perf_counter() - start) / len(batch)
        open_ones = []
        for position, (example, finding) in enumerate(zip(batch, findings, strict=True)):
            merged = _merged(example, finding, stage, share)
            one = torch.tensor([position])
            verdict = _verdict(merged, finding, stage, query.take(one), workspace)
            if verdict is None:
                open_ones.append(merged)
            else:
                records.append(merged.record(verdict))
        batch = open_ones
    return records, batch


def _prepared(batch: list[Example], workspace: Workspace) -> list[Example]:
    """Predictions, and room for bounds, for examples that have none."""
    fresh = [example for example in batch if example.margins is None]
    if not fresh:
        return batch
    logits = workspace.logits(torch.stack([torch.from_numpy(example.image) for example in fresh]))
    unknown = np.full(logits.shape[1], math.inf)
    ready = {
        example.index: dataclasses.replace(example, prediction=int(k), sound=unknown, margins=unknown)
        for example, k in zip(fresh, logits.argmax(1), strict=True)
    }
    return [ready.get(example.index, example) for example in batch]


def _query(batch: list[Example], setting: Setting) -> Query:
    images = torch.stack([torch.from_numpy(example.image) for example in batch])
    labels = torch.tensor([example.label for example in batch])
    margins = torch.tensor(np.stack([_known(example.margins) for example in batch]))
    return Query(
        region=LinfBall(images, batch[0].eps, setting.clip),
        labels=labels,
        margins=without_true_class(margins, labels),
        indices=torch.tensor([example.index for example in batch]),
        seed=setting.seed,
        seconds=setting.timeout,
    )


def _merged(example: Example, finding: Finding, stage: Stage, share: float) -> Example:
    """What is known after a stage: the smaller bound wins, NaN never does."""
    sound, margins = _known(example.sound), _known(example.margins)
    if finding.margins is not None:
        new = without_true_class(finding.margins.unsqueeze(0), torch.tensor([example.label]))[0].numpy()
        margins = np.fmin(margins, new)
        sound = np.fmin(sound, new) if finding.float_sound else sound
    return dataclasses.replace(
        example,
        sound=sound,
        margins=margins,
        times=(*example.times, (stage.name, share)),
        stage=stage.name,
        timed_out=stage.name if finding.timed_out else example.timed_out,
        detail=finding.detail or example.detail,
    )


def _verdict(
    example: Example, finding: Finding, stage: Stage, query: Query, workspace: Workspace
) -> Verdict | None:
    if finding.witness is not None:
        witness = workspace.confirmed(query.region, query.labels, finding.witness)
        if witness is not None:
            bound = _largest(_known(example.margins))
            return Verdict(Status.FALSIFIED, stage.name, bound, witness, example.seconds, float_sound=True)
    margins = _known(example.margins)
    if (margins <= 0).all():
        sound = bool((_known(example.sound) <= 0).all())
        return Verdict(
            Status.ROBUST, stage.name, _largest(margins), seconds=example.seconds, float_sound=sound
        )
    return None


def _known(margins: NDArray[np.float64] | None) -> NDArray[np.float64]:
    if margins is None:
        raise ValueError("an example without bounds: it has not been prepared")
    return margins


def _largest(margins: NDArray[np.float64]) -> float:
    """The bound of the worst margin; NaN if one of them is."""
    return float(margins.max()) if len(margins) else math.inf


def example_of(index: int, image: Tensor, label: int, eps: Fraction, digest: str) -> Example:
    """A fresh question about an image (C, H, W)."""
    return Example(index, image.detach().cpu().numpy(), label, eps, digest)
