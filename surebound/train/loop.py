"""The training loop. It knows no method by name, keeps its numbers on the device, and resumes to the same bits.

Every draw of a step comes from a stream seeded by (run, step), and the order of the data is a function of the
step, so the state of a run is: step, weights, optimiser moments, and the global generators (for networks that
draw from them).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from surebound.data.order import BatchOrder, stream
from surebound.data.types import to_unit
from surebound.errors import ConfigError, DivergedError
from surebound.graph import Program, forward, program_of
from surebound.graph.fit import evaluating
from surebound.kernels import keep_memory
from surebound.numerics import Soundness
from surebound.region import BALLS
from surebound.spec import check_labels
from surebound.train.average import WeightAverage
from surebound.train.checkpoint import Checkpoint
from surebound.train.clock import Clock
from surebound.train.evaluate import Errors, measure
from surebound.train.initialise import affine_layers
from surebound.train.methods.base import Batch, Loss, check_norm
from surebound.train.observe import Progress
from surebound.train.optimise import add_l1_gradient
from surebound.train.parts import add_gradients
from surebound.train.rates import Rates, make_optimiser
from surebound.train.state import all_finite, capture, restore
from surebound.train.synchronise import GlobalStatistics, synchronised
from surebound.train.task import Outcome, Surroundings, Task
from surebound.train.window import ScalarWindow

CHECK_EVERY = 50  # steps between looks at the accumulated loss: each costs a synchronisation with the host


class Loop:
    """One run, from its last checkpoint if there is one, to its end or to a request to stop."""

    def __init__(self, task: Task, around: Surroundings | None = None) -> None:
        self.task, self.around = task, around or Surroundings()
        group, plan = self.around.group, task.plan
        if task.method.robust and plan.eps_train == 0:
            raise ConfigError(f"the method {task.method.name!r} needs a positive eps_train, got 0")
        check_norm(task.method, plan.norm)
        self.order = BatchOrder(len(task.train), plan.batch_size, plan.seed, rank=group.rank, world_size=group.size)
        self.parameters = [p for p in task.model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ConfigError("the network has no parameters that require gradients: there is nothing to train")
        self.program: Program | None = None
        self.partner = self._partner()
        self.parameters += [] if self.partner is None else list(self.partner.parameters())
        self.weights = [layer.weight for layer in affine_layers(task.model) if layer.weight.requires_grad]
        self.optimiser = make_optimiser(task, self.parameters)
        self.rates = Rates(self.optimiser, task)
        self.average = WeightAverage(plan.averaging, self.parameters) if plan.averaging is not None else None
        self.epsilon, self.kappa = plan.epsilon, plan.kappa
        self.statistics = GlobalStatistics(group) if plan.sync_batch_norm and group.size > 1 else None
        self.window = ScalarWindow()
        self.step = 0
        self.best: tuple[float, int] | None = None  # score and step
        self.last_good: Path | None = None

    def _partner(self) -> nn.Module | None:
        """Return what the method trains beside the network; most train nothing."""
        if not self.task.method.joint:
            return None
        return self.task.method.partner(program_of(self.task.model, self._examples(0)[0][:2]))

    # ------------------------------------------------------------------ the loop
    def run(self) -> Outcome:
        """Train until the plan's last step, or until asked to stop."""
        steps, around = self.task.plan.steps, self.around
        self.prepare()
        around.observer.started(self.step, steps)
        clock = Clock(self.step, around.checkpoint_seconds)
        self.task.model.train()
        stopping = False
        while self.step < steps and not stopping:
            stopping = self.advance()
            last = self.step == steps
            if (last or self.step % CHECK_EVERY == 0) and not self.window.finite():
                raise self._diverged()
            try:
                if last or self.step % around.log_every == 0:
                    self._report(clock)
                if self._evaluation_due():
                    clock.paused(self._evaluate())
            except KeyboardInterrupt:  # of an observer, or during a measurement: the step itself is whole
                self._save()
                raise
            if last or stopping or clock.checkpoint_due():
                self._save()
                clock.checkpointed()
        if self.average is not None and self.average.count and self.step >= steps:
            with synchronised(self.statistics):
                self.average.apply(self.task.model, self._inputs(self.average.settings.batches))
        self.task.model.eval()
        best, best_step = self.best or (None, None)
        return Outcome(self.step, self.step >= steps, best_step, best)

    def prepare(self) -> None:
        """Trace the network if the method wants it, and continue from the last checkpoint."""
        keep_memory()
        self._require_labels()
        if self.task.method.bound_based:  # before restoring: tracing may draw from the global generator
            self.program = program_of(self.task.model, self._examples(0)[0][:2])
        store = self.around.checkpoints
        found = store.latest() if store is not None else None
        if store is not None and found is not None:
            restore(found, self.task.model, self.optimiser, self.parameters, self.average, self.partner)
            self.rates.restore(found.state.get("rates"))
            self.step, self.last_good = found.step, store.path(found.step)
            self.best = tuple(found.state["best"]) if found.state.get("best") else None
        self.around.group.broadcast_([*self.parameters, *self.task.model.buffers()])

    def _require_labels(self) -> None:
        """Refuse labels that are no outputs of the network before anything is trained."""
        with evaluating(self.task.model), torch.no_grad():
            outputs = forward(self.task.model, self._examples(0)[0][:2])  # (2, K)
        for split in (self.task.train, self.task.held_out):
            if split is not None:
                check_labels(split.labels, len(split), outputs.shape[1])

    def advance(self) -> bool:
        """Take one step of the optimiser; say whether some process was asked to stop."""
        self.optimiser.zero_grad(set_to_none=True)
        means = self._add_gradients()
        value, stopping = self._average(means["loss"], self.around.stop())
        add_l1_gradient(self.weights, self.task.plan.l1)
        if self.task.plan.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.task.plan.clip_norm)
        self.rates.before(self.step)
        self.optimiser.step()
        self.rates.after()
        self.window.add({**means, "loss": value})
        self.step += 1
        if self.average is not None:
            self.average.update(self.step)
        return stopping

    def _examples(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) and labels (B,) of this process's share of a step."""
        task, group = self.task, self.around.group
        indices = self.order.indices(step)
        pixels = task.train.pixels(indices)
        if task.augment is not None:
            draws = stream(task.plan.seed, "augment", step)
            pixels = task.augment(pixels, draws, shard=(group.rank, group.size))
        return to_unit(pixels), task.train.labels[indices.to(task.train.device)]

    def _inputs(self, count: int) -> Iterator[Tensor]:
        """Yield the inputs (B, ...) of this process's share of the first `count` steps."""
        for step in range(count):
            yield self._examples(step)[0]

    def _add_gradients(self) -> dict[str, Tensor]:
        """Add up the gradients of this step's loss, part by part; return it and what the method reports."""
        task, step = self.task, self.step
        generator = stream(task.plan.seed, "method", step, self.around.group.rank)

        def loss(images: Tensor, labels: Tensor) -> Loss:
            batch = Batch(
                model=task.model,
                images=images,
                labels=labels,
                epsilon=self.epsilon.at(step),
                eps_train=float(task.plan.eps_train),
                kappa=self.kappa.at(step),
                step=step,
                generator=generator,
                clip=task.clip,
                norm=getattr(BALLS[task.plan.norm], "norm", None),
                traced=self.program,
                statistics=self.statistics,
                partner=self.partner,
            )
            return task.method.loss(batch)

        with synchronised(self.statistics):
            return add_gradients(loss, *self._examples(step), task.plan.accumulate)

    def _average(self, value: Tensor, stopping: bool) -> tuple[Tensor, bool]:
        """Average gradients and loss; all processes learn in the same step that one was asked to stop."""
        group = self.around.group
        if group.size == 1:
            return value, stopping
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        sums = group.average_(gradients, torch.stack([value, torch.full_like(value, float(stopping))]))
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient
        return sums[0] / group.size, bool(sums[1] != 0)

    # ------------------------------------------------------------------ what it says
    def _report(self, clock: Clock) -> None:
        plan, last = self.task.plan, self.step - 1
        speed, left = clock.pace(self.step, plan.steps, plan.batch_size)
        self.around.observer.progressed(
            Progress(
                step=self.step,
                steps=plan.steps,
                scalars=self.window.read(),
                epsilon=self.epsilon.at(last),
                kappa=self.kappa.at(last),
                rate=self.rates.at(last),
                samples_per_second=speed,
                seconds_left=left,
            )
        )

    def _evaluation_due(self) -> bool:
        every = self.task.evaluation.every
        return self.task.held_out is not None and every > 0 and self.step % every == 0

    def _evaluate(self) -> float:
        """Measure the held-out data, with averaged weights if there are any; the seconds it took."""
        began, average = time.monotonic(), self.average
        if average is None or average.count == 0:
            self._measure()
        else:
            inputs = self._inputs(average.settings.batches)
            with synchronised(self.statistics), average.applied(self.task.model, inputs):
                self._measure()
        return time.monotonic() - began

    def _measure(self) -> None:
        task, around = self.task, self.around
        if task.held_out is not None:
            errors = measure(
                task.model, task.held_out, task.evaluation, soundness=Soundness.NONE, clip=task.clip,
                group=around.group, seed=task.plan.seed,
            )  # fmt: skip
            around.observer.evaluated(self.step, errors)
            if self.best is None or score(errors) < self.best[0]:
                self.best = (score(errors), self.step)
                if around.checkpoints is not None and around.group.leader:
                    around.checkpoints.save_best(self._checkpoint())

    # ------------------------------------------------------------------ what it keeps
    def _checkpoint(self) -> Checkpoint:
        extra = {
            "seed": self.task.plan.seed,
            "batch_size": self.task.plan.batch_size,
            "examples": len(self.task.train),
            "epoch": self.order.epoch(self.step),
            "best": list(self.best) if self.best else None,
            "rates": self.rates.state(),
        }
        return capture(self.step, self.task.model, self.optimiser, self.parameters, extra, self.average, self.partner)

    def _save(self) -> None:
        """Write a checkpoint, but never of weights that are no numbers any more."""
        store = self.around.checkpoints
        if store is None or not self.around.group.leader:
            return
        if not all_finite(self.parameters):
            raise self._diverged()
        self.last_good = store.save(self._checkpoint())
        self.around.observer.saved(self.step, self.last_good)

    def _diverged(self) -> DivergedError:
        plan, step = self.task.plan, self.step
        clip = "" if plan.clip_norm is not None else " set clip_norm (10 is usual),"
        return DivergedError(
            f"the loss or the weights became NaN or infinite between steps {max(0, step - CHECK_EVERY)} and {step} "
            f"(radius {self.epsilon.at(step):.4g}, learning rate {self.rates.at(step):.3g}). "
            f"The last good checkpoint is {self.last_good or 'none'}. Likely remedies: lower the learning rate "
            f"of {plan.learning_rate:g},{clip} or lengthen the ramp of {plan.ramp} steps; then start a new run"
        )


def score(errors: Errors) -> float:
    """Score errors by the mean of the clean and the verified ones: the least is the best."""
    rates = [errors.clean, *errors.verified.values()]
    return sum(rates) / len(rates)
