"""`sb.train`: the loop on a user's own network and data, in a run directory if one is named."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from surebound.data.augment import Augment
from surebound.data.types import Dataset, Status
from surebound.errors import ConfigError, RunError
from surebound.experiment import own
from surebound.experiment.codec import encode
from surebound.experiment.config import OWN, Config, DataConfig, ModelConfig, RunConfig
from surebound.experiment.notebook import NotebookBar, in_notebook
from surebound.experiment.run import Caller, Job, execute
from surebound.experiment.rundir import RunDirectory
from surebound.experiment.signals import stop_on_signals
from surebound.experiment.terminal import Terminal
from surebound.train.api import make_task
from surebound.train.distributed import Group, process_group
from surebound.train.evaluate import Clip, Evaluation
from surebound.train.loop import Loop
from surebound.train.methods import METHODS, Method
from surebound.train.observe import Observer, Observers
from surebound.train.plan import Plan
from surebound.train.task import OptimiserFactory, Outcome, SchedulerFactory, Surroundings, Task
from surebound.zoo.layers import describe

UPDATES = 100  # of the bar and the metrics over a short run


def train(
    model: nn.Module,
    data: object,
    method: Method,
    plan: Plan,
    *,
    epochs: float | None = None,
    held_out: object = None,
    evaluation: Evaluation | None = None,
    augment: Augment | None = None,
    clip: Clip = (0.0, 1.0),
    out: str | Path | None = None,
    optimiser: OptimiserFactory | None = None,
    scheduler: SchedulerFactory | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train `model` in place, on the device it is on.

    `data` and `held_out` are a `surebound.data.Split`, a pair of tensors (inputs, labels), or a torch Dataset of
    (tensor, label); a `surebound.data.Dataset` as `data` brings both, and its augmentation. `epochs` stretches the
    plan to so many passes over the data. Inputs outside `clip` are outside the threat model: balls are cut to it
    (None: not cut).

    With `out`, a run directory is written that `surebound verify`, `resume` and `report` and `sb.load` take; the same
    call goes on from its last checkpoint, to the same bits. Ctrl-C ends the step under way, writes a checkpoint and
    raises KeyboardInterrupt. Under torchrun the processes share every batch.

    `optimiser` makes an optimiser of the parameters (default: Adam with the plan's rate; the plan's decays apply to
    either), `scheduler` one of torch.optim.lr_scheduler of that, stepped after every step instead of the plan's
    decays. `observer` hears what happens; `stop` is asked after every step whether to end. A bar is shown in a
    terminal and in a notebook (`progress`: always or never).

    >>> from surebound.train.methods import IBP
    >>> x = torch.rand(200, 2, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> plan = Plan(steps=50, batch_size=50, eps_train="1/100", warmup=10, ramp=20)
    >>> train(net, (x, (x[:, 0] > x[:, 1]).long()), IBP(), plan).finished
    True
    """
    task = make_task(
        model, data, method, plan, epochs=epochs, held_out=held_out, evaluation=evaluation, augment=augment, clip=clip,
        optimiser=optimiser, scheduler=scheduler,
    )  # fmt: skip
    with process_group() as group, stop_on_signals(signal.SIGINT) as interrupted:
        bar = _bar(method.name, progress) if group.leader else nullcontext(Observer())
        with bar as shown:
            caller = Caller(
                Observers((shown, *((observer,) if observer is not None else ()))) if group.leader else Observer(),
                stop=lambda: bool(interrupted) or stop(),
            )
            if out is None:
                outcome = Loop(task, _around(task, caller, group)).run()
            else:
                outcome = _in_directory(Path(out), task, data, caller, group)
    if interrupted and not outcome.finished:
        raise KeyboardInterrupt(f"stopped after step {outcome.step} of {task.plan.steps}{_what_now(out)}")
    return outcome


def _what_now(out: str | Path | None) -> str:
    return "; the network is trained so far" if out is None else f"; the same call goes on from there ({out})"


def _bar(name: str, progress: bool | None) -> AbstractContextManager[Observer]:
    """What shows how far it is: a notebook's bar, a terminal's, or nothing where nobody looks."""
    if progress is False:
        return nullcontext(Observer())
    if in_notebook():
        return NotebookBar(name)
    terminal = Terminal(name)
    return terminal if terminal.live or progress else nullcontext(Observer())


def _around(task: Task, caller: Caller, group: Group) -> Surroundings:
    return Surroundings(group=group, log_every=_log_every(task), observer=caller.observer, stop=caller.stop)


def _log_every(task: Task) -> int:
    return max(1, min(100, task.plan.steps // UPDATES))


def _in_directory(path: Path, task: Task, data: object, caller: Caller, group: Group) -> Outcome:
    """Train in a run directory: a new one, or the one that the same call wrote before."""
    job = _job(task, data)
    config = job.config
    if group.leader:
        if (path / "config.toml").exists() and RunDirectory(path).begun:
            _require_same(path, config)
        else:
            own_data = config.data.name == OWN
            run = RunDirectory.create(path, config)
            if own_data:
                own.keep(run, task)
    group.barrier()
    run = RunDirectory.open(path)
    with run.alone() if group.leader else nullcontext():
        return execute(run, job, caller, group, threads=torch.get_num_threads()).outcome


def _job(task: Task, data: object) -> Job:
    """The configuration that describes a task, and what it leaves out."""
    method, named = task.method, isinstance(data, Dataset) and data.provenance.status is Status.OFFICIAL
    if METHODS.get(method.name) is not type(method):
        raise ConfigError(
            f"a run directory names its method, and {type(method).__name__} has no name that is known: "
            "decorate the class with @sb.training.register"
        )
    dataset_augments = named and isinstance(data, Dataset) and task.augment is data.augment
    config = Config(
        name=method.name,
        data=DataConfig(
            data.name if named and isinstance(data, Dataset) else OWN,
            augment=dataset_augments and task.augment is not None,
            clip=() if task.clip is None else (float(task.clip[0]), float(task.clip[1])),
        ),
        model=ModelConfig(name=OWN, normalise=False),
        method=method,
        plan=task.plan,
        evaluation=task.evaluation,
        run=RunConfig(device=str(task.train.device), threads=torch.get_num_threads(), log_every=_log_every(task)),
    )
    record = data.provenance.record() if named and isinstance(data, Dataset) else _own_record(task)
    given = [name for name in ("optimiser", "scheduler") if getattr(task, name) is not None]
    given += ["augmentation"] if task.augment is not None and not dataset_augments else []
    return Job(config, task, record, describe(task.model), tuple(given))


def _own_record(task: Task) -> dict[str, object]:
    return {"status": Status.OWN.value, "digest": own.digest(task)}


def _require_same(path: Path, config: Config) -> None:
    """Refuse to go on with a run of another configuration; what belongs to the machine may differ."""
    before, now = (encode(replace(c, run=RunConfig())) for c in (RunDirectory.open(path).config, config))
    changed = [f"{part} (then {before.get(part)}, now {now[part]})" for part in now if before.get(part) != now[part]]
    if changed:
        raise RunError(f"{path} holds a run with another {'; another '.join(changed)}; choose another out=")
