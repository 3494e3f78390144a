"""The training loop. It knows no method by name, keeps its numbers on the device, and resumes to the same bits.

Every draw of a step comes from a stream seeded by (run, step), and the order of the data is a function of the step,
so the state of a run is: step, weights, optimiser moments, and the global generators (for networks that draw).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surebound.data.augment import Augment
from surebound.data.order import BatchOrder, stream
from surebound.data.types import Split, to_unit
from surebound.errors import ConfigError, DivergedError
from surebound.graph import Program, program_of
from surebound.numerics import Soundness
from surebound.train.checkpoint import Checkpoint, CheckpointStore, restore_rng, rng_state
from surebound.train.distributed import Group
from surebound.train.evaluate import Domain, Errors, Evaluation, measure
from surebound.train.methods.base import Batch, Loss, Method
from surebound.train.observe import Observer, Progress
from surebound.train.plan import Plan
from surebound.train.window import Window

CHECK_EVERY = 50  # steps between looks at the accumulated loss: the price of one host synchronisation


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained on what, how."""

    model: nn.Module
    train: Split
    method: Method
    plan: Plan
    held_out: Split | None = None
    augment: Augment | None = None
    domain: Domain = (0.0, 1.0)
    evaluation: Evaluation = Evaluation()


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Where a loop runs: its processes, its checkpoints, its listeners, and who may stop it."""

    group: Group = Group()
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


class Loop:
    """One run, from its last checkpoint if there is one, to its end or to a request to stop."""

    def __init__(self, task: Task, around: Surroundings | None = None) -> None:
        self.task = task
        self.around = around or Surroundings()
        group, plan = self.around.group, task.plan
        if task.method.robust and plan.eps_train == 0:
            raise ConfigError(f"the method {task.method.name!r} needs a positive eps_train, got 0")
        self.order = BatchOrder(
            len(task.train), plan.batch_size, plan.seed, rank=group.rank, world_size=group.size
        )
        self.device = task.train.device
        self.parameters = [p for p in task.model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(
            self.parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay, fused=True
        )
        self.window = Window()
        self.step = 0
        self.best: tuple[float, int] | None = None
        self.last_good: Path | None = None
        self.schedules = (plan.epsilon, plan.kappa, plan.rate)
        self.program: Program | None = None

    # ---------------------------------------------------------------- the loop
    def run(self) -> Outcome:
        """Train until the plan's last step, or until asked to stop."""
        plan, around = self.task.plan, self.around
        if self.task.method.bound_based:  # before restoring: tracing may draw from the global generator
            self.program = program_of(self.task.model, self._images(0)[0][:2])
        self._restore()
        around.group.broadcast_([*self.parameters, *self.task.model.buffers()])
        around.observer.started(self.step, plan.steps)
        clock, logged = _Clock(self.step, around.checkpoint_seconds), self.step
        self.task.model.train()
        while self.step < plan.steps:
            stopping = self._advance()
            if self.step % CHECK_EVERY == 0 or self.step == plan.steps:
                self._require_finite()
            if self.step % around.log_every == 0 or self.step == plan.steps:
                self._report(clock, logged)
                logged = self.step
            if self._evaluation_due():
                self._evaluate()
            if stopping or self.step == plan.steps or clock.checkpoint_due():
                self._save()
                clock.checkpointed()
            if stopping and self.step < plan.steps:
                break
        self.task.model.eval()
        best_error, best_step = self.best or (None, None)
        return Outcome(self.step, self.step >= plan.steps, best_step, best_error)

    def _advance(self) -> bool:
        """One step of the optimiser; whether some process was asked to stop."""
        loss = self._loss()
        self.optimiser.zero_grad(set_to_none=True)
        loss.value.backward()  # type: ignore[no-untyped-call]
        stopping = self.around.stop()
        value, stops = self._average(loss.value.detach(), stopping)
        if self.task.plan.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.task.plan.clip_norm)
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedules[2].at(self.step)
        self.optimiser.step()
        self.window.add({"loss": value, **loss.scalars})
        self.step += 1
        return stops

    def _images(self, step: int) -> tuple[Tensor, Tensor]:
        task, group = self.task, self.around.group
        indices = self.order.indices(step)
        pixels = task.train.pixels(indices)
        if task.augment is not None:
            draws = stream(task.plan.seed, "augment", step)
            pixels = task.augment(pixels, draws, shard=(group.rank, group.size))
        return to_unit(pixels), task.train.labels[indices.to(self.device)]

    def _loss(self) -> Loss:
        task = self.task
        images, labels = self._images(self.step)
        epsilon, kappa, _ = self.schedules
        return task.method.loss(
            Batch(
                model=task.model,
                images=images,
                labels=labels,
                epsilon=epsilon.at(self.step),
                eps_train=float(task.plan.eps_train),
                kappa=kappa.at(self.step),
                step=self.step,
                generator=stream(task.plan.seed, "method", self.step, self.around.group.rank),
                domain=task.domain,
                traced=self.program,
            )
        )

    def _average(self, value: Tensor, stopping: bool) -> tuple[Tensor, bool]:
        """Average gradients and loss; all processes learn together that one of them was asked to stop."""
        group = self.around.group
        if group.size == 1:
            return value, stopping
        for p in self.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        sums = group.average_(gradients, torch.stack([value, torch.full_like(value, float(stopping))]))
        return sums[0] / group.size, bool(sums[1] > 0)

    # ---------------------------------------------------------------- reports
    def _require_finite(self) -> None:
        if self.window.finite():
            return
        plan, good = self.task.plan, self.last_good
        clip = "" if plan.clip_norm is not None else " set clip_norm (10 is usual),"
        raise DivergedError(
            f"the loss became NaN or infinite between steps {max(0, self.step - CHECK_EVERY)} and {self.step} "
            f"(radius {self.schedules[0].at(self.step):.4g}, learning rate {self.schedules[2].at(self.step):.3g}). "
            f"The last good checkpoint is {good if good is not None else 'none'}. Likely remedies: lower the learning "
            f"rate of {plan.learning_rate:g},{clip} or lengthen the ramp of {plan.ramp} steps; then start anew"
        )

    def _report(self, clock: _Clock, logged: int) -> None:
        plan, scalars = self.task.plan, self.window.read()
        now = max(0, self.step - 1)
        speed, left = clock.pace(self.step, plan.steps, self.step - logged, plan.batch_size)
        self.around.observer.progressed(
            Progress(
                step=self.step,
                steps=plan.steps,
                scalars=scalars,
                epsilon=self.schedules[0].at(now),
                kappa=self.schedules[1].at(now),
                rate=self.schedules[2].at(now),
                samples_per_second=speed,
                seconds_left=left,
            )
        )

    def _evaluation_due(self) -> bool:
        every = self.task.evaluation.every
        return self.task.held_out is not None and bool(every) and self.step % every == 0

    def _evaluate(self) -> None:
        task, around = self.task, self.around
        assert task.held_out is not None  # _evaluation_due looked
        errors = measure(
            task.model,
            task.held_out,
            task.evaluation,
            soundness=Soundness.NONE,
            domain=task.domain,
            group=around.group,
            seed=task.plan.seed,
        )
        around.observer.evaluated(self.step, errors)
        score = _score(errors)
        if self.best is None or score < self.best[0]:
            self.best = (score, self.step)
            if around.checkpoints is not None and around.group.leader:
                around.checkpoints.save_best(self._checkpoint())

    # ---------------------------------------------------------------- state
    def _checkpoint(self) -> Checkpoint:
        tensors: dict[str, Tensor] = {}
        for i, p in enumerate(self.parameters):
            for key, value in self.optimiser.state[p].items():
                tensors[f"{i}.{key}"] = value
        state: dict[str, Any] = {
            "rng": rng_state(self.device),
            "seed": self.task.plan.seed,
            "batch_size": self.task.plan.batch_size,
            "epoch": self.order.epoch(self.step),
            "best": list(self.best) if self.best else None,
        }
        return Checkpoint(self.step, self.task.model.state_dict(), tensors, state)

    def _save(self) -> None:
        store = self.around.checkpoints
        if store is None or not self.around.group.leader:
            return
        self._require_finite()
        self.last_good = store.save(self._checkpoint())
        self.around.observer.saved(self.step, self.last_good)

    def _restore(self) -> None:
        store = self.around.checkpoints
        found = store.latest() if store is not None else None
        if found is None or store is None:
            return
        self.last_good = store.directory / f"step-{found.step:09d}"
        self.task.model.load_state_dict({k: v.to(self.device) for k, v in found.weights.items()})
        self._restore_optimiser(found.optimiser)
        restore_rng(found.state["rng"], self.device)
        self.best = tuple(found.state["best"]) if found.state["best"] else None
        self.step = found.step

    def _restore_optimiser(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in tensors.items():
            index, key = name.split(".", 1)
            self.optimiser.state[self.parameters[int(index)]][key] = value.to(self.device)


def _score(errors: Errors) -> float:
    """What "best" means: the verified error at the largest radius where anything is proved, else the clean error."""
    for radius in sorted(errors.verified, reverse=True):
        if errors.verified[radius] < 1.0:
            return errors.verified[radius]
    return 1.0 + errors.clean


class _Clock:
    """Wall-clock time, which decides when to write and what to announce, never what is computed."""

    def __init__(self, step: int, checkpoint_seconds: float) -> None:
        self._seconds = checkpoint_seconds
        self._started = self._logged = self._saved = time.monotonic()
        self._first = step

    def checkpoint_due(self) -> bool:
        return time.monotonic() - self._saved >= self._seconds

    def checkpointed(self) -> None:
        self._saved = time.monotonic()

    def pace(self, step: int, steps: int, recent: int, batch_size: int) -> tuple[float, float]:
        """Samples per second since the last report, and the seconds left at the pace so far."""
        now = time.monotonic()
        speed = recent * batch_size / max(now - self._logged, 1e-9)
        each = (now - self._started) / max(step - self._first, 1)
        self._logged = now
        left = each * (steps - step)
        return speed, left if math.isfinite(left) else 0.0
