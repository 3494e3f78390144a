"""What a loop is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from surebound.data.augment import Augment
from surebound.train.checkpoint import CheckpointStore
from surebound.train.distributed import ALONE, Group
from surebound.train.evaluate import Clip, Evaluation
from surebound.train.examples import Examples
from surebound.train.methods.base import Method
from surebound.train.observe import Observer
from surebound.train.plan import Plan


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained on what, how."""

    model: nn.Module
    train: Examples
    method: Method
    plan: Plan
    held_out: Examples | None = None
    augment: Augment | None = None
    clip: Clip = (0.0, 1.0)
    evaluation: Evaluation = field(default_factory=Evaluation)


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Where a loop runs: its processes, its checkpoints, its listeners, and who may stop it."""

    group: Group = ALONE
    checkpoints: CheckpointStore | None = None
    checkpoint_seconds: float = 60.0
    log_every: int = 100
    observer: Observer = field(default_factory=Observer)
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Outcome:
    """How a loop ended: finished, or stopped on request after `step` steps."""

    step: int
    finished: bool
    best_step: int | None = None
    best_error: float | None = None
