"""Run a configuration: data, network, loop, final numbers; start anew or resume."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from surebound import data
from surebound.errors import ConfigError, RunError
from surebound.experiment.config import Config
from surebound.experiment.environment import describe_environment
from surebound.experiment.metrics import MetricsFile
from surebound.experiment.nets import architecture_of, build_net
from surebound.experiment.rundir import RunDirectory
from surebound.numerics import Soundness
from surebound.train.checkpoint import replace_file
from surebound.train.distributed import Group, process_group
from surebound.train.evaluate import Errors, measure
from surebound.train.loop import Loop
from surebound.train.observe import Observer, Observers
from surebound.train.task import Outcome, Surroundings, Task
from surebound.train.threads import ThreadChoice, choose_threads


@dataclass(frozen=True, eq=False)
class Caller:
    """Who runs an experiment: what to tell, when to stop, where data are."""

    observer: Observer
    stop: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda text: None
    data_dir: Path | None = None


@dataclass(frozen=True)
class RunResult:
    """How a run ended; `errors` are measured only when it is finished."""

    run: RunDirectory
    outcome: Outcome
    errors: Errors | None
    leader: bool = True  # False in the other processes of a distributed run


def start(config: Config, path: Path, caller: Caller) -> RunResult:
    """Begin a new run in `path`."""
    with process_group() as group:
        # Before anything is written: it may be missing.
        dataset = data.load(config.data.name, caller.data_dir)
        if group.leader:
            RunDirectory.create(path, config)
        group.barrier()
        return _alone(RunDirectory.open(path), dataset, caller, group)


def resume(path: Path, caller: Caller) -> RunResult:
    """Continue a run from its last checkpoint; a finished one is only measured again."""
    with process_group() as group:
        run = RunDirectory.open(path)
        dataset = data.load(run.config.data.name, caller.data_dir)
        return _alone(run, dataset, caller, group)


def _alone(run: RunDirectory, dataset: data.Dataset, caller: Caller, group: Group) -> RunResult:
    with run.alone() if group.leader else contextlib.nullcontext():
        return _execute(run, dataset, caller, group)


def _execute(run: RunDirectory, dataset: data.Dataset, caller: Caller, group: Group) -> RunResult:
    config, known = run.config, run.read_json("environment.json")
    digest = known.get("data", {}).get("digest", dataset.provenance.digest)
    if digest != dataset.provenance.digest:
        raise RunError(f"the data differ from those the run {run.path} began with; point --data-dir at the same files")
    threads = _threads(config, known, caller, group)
    torch.set_num_threads(threads)
    if group.leader and known.get("processes", group.size) != group.size:
        caller.say(
            f"the run began with {known['processes']} processes and goes on with {group.size}: "
            "it will not end with the same bits"
        )
    if group.leader:
        run.write_json("environment.json", _record(config, dataset, threads, group, known))
    device = _device(config.run.device)
    dataset = dataset.to(device)
    model = build_net(config.model, dataset, config.plan.seed).to(device)
    metrics = MetricsFile(run.metrics, run.path / "events") if group.leader else Observer()
    try:
        outcome = Loop(
            _task(config, dataset, model),
            Surroundings(
                group=group,
                checkpoints=run.checkpoints(config.run.keep),
                checkpoint_seconds=config.run.checkpoint_seconds,
                log_every=config.run.log_every,
                observer=Observers((metrics, caller.observer)) if group.leader else Observer(),
                stop=caller.stop,
            ),
        ).run()
    finally:
        if isinstance(metrics, MetricsFile):
            metrics.close()
    if not outcome.finished:
        return RunResult(run, outcome, None, group.leader)
    return RunResult(run, outcome, _finish(run, config, dataset, model, outcome, group), group.leader)


def _task(config: Config, dataset: data.Dataset, model: nn.Module) -> Task:
    return Task(
        model=model,
        train=dataset.train,
        method=config.method,
        plan=config.plan,
        held_out=dataset.test,
        augment=dataset.augment if config.data.augment else None,
        evaluation=config.evaluation,
    )


def _finish(
    run: RunDirectory, config: Config, dataset: data.Dataset, model: nn.Module, outcome: Outcome, group: Group
) -> Errors:
    """Write the final weights, then measure them on the whole held-out split with rounding control."""
    if group.leader:
        replace_file(run.final, model.state_dict())
    whole, seed, began = replace(config.evaluation, images=None), config.plan.seed, time.monotonic()
    errors = measure(model, dataset.test, whole, soundness=Soundness.DEPLOYED, group=group, seed=seed)
    if group.leader:
        record = {"name": config.name, "step": outcome.step, "best_step": outcome.best_step}
        seconds = round(time.monotonic() - began, 1)
        run.write_json("results.json", {**record, **errors.record(), "evaluation_seconds": seconds})
    return errors


def _threads(config: Config, known: dict[str, object], caller: Caller, group: Group) -> int:
    """What the run began with, so that it continues to the same bits; else the configuration's or a trial's choice."""
    before = known.get("threads")
    if isinstance(before, int):
        return before
    choice = choose_threads(config.run.threads) if group.size == 1 else ThreadChoice(config.run.threads or 1)
    if choice.note and group.leader:
        caller.say(choice.note)
    return choice.threads


def _record(
    config: Config, dataset: data.Dataset, threads: int, group: Group, known: dict[str, object]
) -> dict[str, object]:
    now = describe_environment()
    if not known:
        return {
            **now,
            "seed": config.plan.seed,
            "threads": threads,
            "processes": group.size,
            "data": dataset.provenance.record(),
            "architecture": architecture_of(config.model, dataset).record(),
        }
    changed = {k: v for k, v in now.items() if known.get(k) != v}
    resumed = known.get("resumed", [])
    return {**known, "resumed": [*(resumed if isinstance(resumed, list) else []), changed]}


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"the device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device
