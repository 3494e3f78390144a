"""What a loop is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from surebound.data.augment import Augment
from surebound.train.checkpoint import CheckpointStore
from surebound.train.distributed import ALONE, Group
from surebound.train.evaluate import Clip, Evaluation
from surebound.train.examples import Examples
from surebound.train.methods.base import Method
from surebound.train.observe import Observer
from surebound.train.plan import Plan

#: Makes the optimiser of the parameters that are trained, e.g. ``lambda p: torch.optim.SGD(p, lr=0.1)``.
OptimiserFactory = Callable[[list[nn.Parameter]], Optimizer]
#: Makes what sets the optimiser's rates after every step: one of ``torch.optim.lr_scheduler``.
SchedulerFactory = Callable[[Optimizer], Any]


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
    optimiser: OptimiserFactory | None = None  # None: the plan's
    scheduler: SchedulerFactory | None = None  # None: the plan's decays


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
