"""What a run will do, take and need, before anything of it is started: from trial steps of the same loop.

A trial takes three steps of the run's beginning and three of its end (full radius), bounds one batch of held-out
images, and reads the process's peak memory. Its network is thrown away, and nothing is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from surebound import data
from surebound.errors import ConfigError
from surebound.experiment.config import Config
from surebound.experiment.run import Caller, job_of
from surebound.numerics import Soundness
from surebound.train.evaluate import measure
from surebound.train.footprint import gigabytes, peak_memory
from surebound.train.loop import Loop
from surebound.train.task import Task
from surebound.train.threads import choose_threads

TRIALS = 3  # steps of each kind; the fastest one counts: the first ones trace, compile and allocate


@dataclass(frozen=True)
class Forecast:
    """The numbers of a run before it is started."""

    config: Config
    examples: int
    threads: int
    early_seconds: float  # of a step before the radius grows
    late_seconds: float  # of a step at the full radius
    evaluation_seconds: float | None  # of all held-out images by interval bounds; None: there are none
    peak_bytes: int | None  # of the process
    checkpoint_bytes: int

    @property
    def seconds(self) -> float:
        """The steps' time: those of the warm-up as at the beginning, all others as at the end."""
        plan = self.config.plan
        return plan.warmup * self.early_seconds + (plan.steps - plan.warmup) * self.late_seconds

    def lines(self) -> list[str]:
        """What a person wants to know, line by line."""
        plan = self.config.plan
        epochs = plan.steps * plan.batch_size / max(1, self.examples)
        part = -(-plan.batch_size // plan.accumulate)
        split = f", in {plan.accumulate} parts of {part}" if plan.accumulate > 1 else ""
        found = [
            f"{self.config.name}: {self.config.method.name}, eps_train {plan.eps_train}, {self.threads} thread(s)",
            f"{plan.steps:,} steps of {plan.batch_size:,} images{split}: {epochs:.1f} epochs of {self.examples:,}; "
            f"warm-up {plan.warmup:,}, ramp {plan.ramp:,}",
            f"a step: {self.early_seconds:.3g} s at the beginning, {self.late_seconds:.3g} s at the full radius "
            f"({3600 / max(self.late_seconds, 1e-9):,.0f} an hour); all of them: {_duration(self.seconds)}",
        ]
        if self.evaluation_seconds is not None:
            found.append(f"interval bounds of all held-out images: {_duration(self.evaluation_seconds)} each time")
        return [
            *found,
            f"memory: {gigabytes(self.peak_bytes)} at most, the process with its data; a checkpoint: "
            f"{self.checkpoint_bytes / 1e6:.1f} MB",
        ]


def forecast(config: Config, caller: Caller) -> Forecast:
    """Try a configuration with a few steps and say what its run will take."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--plan tries one process: leave torchrun away; each of N processes holds an N-th of a batch")
    job = job_of(config, data.load(config.data.name, caller.data_dir))
    task, threads = job.task, choose_threads(config.run.threads).threads
    torch.set_num_threads(threads)
    loop = Loop(task)
    loop.prepare()
    task.model.train()
    early, late = (_step_seconds(loop, step) for step in (0, config.plan.steps - 1))
    evaluation = _evaluation_seconds(task)
    state = [*task.model.state_dict().values(), *_moments(loop)]
    return Forecast(
        config,
        examples=len(task.train),
        threads=threads,
        early_seconds=early,
        late_seconds=late,
        evaluation_seconds=evaluation,
        peak_bytes=peak_memory(loop.parameters[0].device),
        checkpoint_bytes=sum(v.numel() * v.element_size() for v in state),
    )


def _step_seconds(loop: Loop, step: int) -> float:
    """Time one step of the optimiser, as step number ``step``."""

    def once() -> None:
        loop.step = step
        loop.advance()

    return min(_seconds(once) for _ in range(TRIALS))


def _evaluation_seconds(task: Task) -> float | None:
    """Time interval bounds of one batch of held-out images, for all of them."""
    if task.held_out is None:
        return None
    held_out, size = task.held_out, min(len(task.held_out), task.evaluation.batch_size)
    few = replace(task.evaluation, images=size, pgd_steps=0)
    took = _seconds(lambda: measure(task.model, held_out, few, soundness=Soundness.DEPLOYED, clip=task.clip))
    return took * len(held_out) / size


def _moments(loop: Loop) -> list[torch.Tensor]:
    states = loop.optimiser.state.values()
    return [v for state in states for v in state.values() if isinstance(v, torch.Tensor)]


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _duration(seconds: float) -> str:
    """Write a time for people."""
    for unit, size in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"
