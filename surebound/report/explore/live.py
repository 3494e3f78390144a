"""Ask again: one image at a radius of the user's choice, with a time limit. The answer is shown and not kept."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch

from surebound.errors import InputError
from surebound.region import LinfBall
from surebound.report.explore.content import floats
from surebound.report.explore.subject import Subject
from surebound.report.verdicts import in_words
from surebound.search.cascade import Cascade
from surebound.search.cascade import cascade as find_cascade
from surebound.search.stages import BranchAndBound
from surebound.verify import verify

#: Seconds that a visitor may ask for.
MOST_SECONDS = 120.0


def _cascade() -> Cascade:
    """Return the default cascade up to branch and bound: solvers take longer than a visitor waits."""
    stages = find_cascade("default").stages
    last = next(i for i, stage in enumerate(stages) if isinstance(stage, BranchAndBound))
    return Cascade("explorer", stages[: last + 1])


def ask(subject: Subject, index: int, eps: Fraction, seconds: float) -> dict[str, Any]:
    """Decide one image within ``eps``; each stage has ``seconds``."""
    x = subject.image(index)
    if subject.model is None or x is None:
        raise InputError("the network or the image is not there, so nothing can be asked")
    if not 0 <= eps <= 1_000_000:
        raise InputError(f"the radius {eps} is not between 0 and a million")
    if not 0 < seconds <= MOST_SECONDS:
        raise InputError(f"{seconds} seconds; give more than 0 and at most {MOST_SECONDS:g}")
    label = next(iter(subject.records[index].values())).label
    ball = LinfBall(x[None], eps, subject.clip)
    (record,) = verify(subject.model, ball, torch.tensor([label]), _cascade(), timeout=seconds)
    verdict = record.verdict
    return {
        "eps": str(eps),
        "status": verdict.status.value,
        "stage": verdict.stage,
        "words": in_words(verdict.stage),
        "bound": float(f"{verdict.bound:.5g}") if abs(verdict.bound) < 1e300 else None,
        "seconds": float(f"{verdict.seconds:.3g}"),
        "readAs": verdict.read_as,
        "sound": verdict.float_sound,
        "detail": verdict.detail,
        "witness": None if verdict.witness is None else floats(verdict.witness),
        "stages": [[name, float(f"{spent:.3g}")] for name, spent in record.stage_seconds],
    }
