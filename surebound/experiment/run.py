"""Run a configuration: data, network, loop, final numbers; start anew or resume."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from surebound import data
from surebound.errors import ConfigError, RunError
from surebound.experiment import own
from surebound.experiment.config import OWN, Config
from surebound.experiment.environment import describe_environment
from surebound.experiment.metrics import MetricsFile
from surebound.experiment.nets import architecture_of, build_net, recorded_net
from surebound.experiment.rundir import RunDirectory
from surebound.numerics import Soundness
from surebound.train.api import make_task
from surebound.train.checkpoint import replace_file
from surebound.train.distributed import Group, process_group
from surebound.train.evaluate import Errors, measure
from surebound.train.footprint import peak_memory
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
    watch: Callable[[Task], Observer] | None = None  # makes an observer that looks at the network itself


@dataclass(frozen=True)
class RunResult:
    """How a run ended; `errors` are measured only when it is finished and there are held-out data."""

    run: RunDirectory
    outcome: Outcome
    errors: Errors | None
    leader: bool = True  # False in the other processes of a distributed run
    peak_bytes: int | None = None  # the most memory that this process held


def start(config: Config, path: Path, caller: Caller) -> RunResult:
    """Begin a new run in `path`; whatever can be wrong is found before the directory is made."""
    with process_group() as group:
        job = job_of(config, data.load(config.data.name, caller.data_dir))
        if group.leader:
            RunDirectory.create(path, config)
        group.barrier()
        return _alone(RunDirectory.open(path), job, caller, group)


def resume(path: Path, caller: Caller) -> RunResult:
    """Continue a run from its last checkpoint; a finished one is only measured again."""
    with process_group() as group:
        run = RunDirectory.open(path)
        config = run.config
        if config.model.name == OWN:
            job = _own_job(run, caller.data_dir)
        else:
            job = job_of(config, data.load(config.data.name, caller.data_dir))
        return _alone(run, job, caller, group)


@dataclass(frozen=True, eq=False)
class Job:
    """A configuration made real: what is trained, and what the run's record says of it."""

    config: Config
    task: Task
    data: dict[str, Any]  # provenance
    architecture: dict[str, Any]
    only_in_python: tuple[str, ...] = ()  # what a command could not resume with


def job_of(config: Config, dataset: data.Dataset) -> Job:
    """Make data, device and network of a configuration, tried with two images."""
    device = device_of(config.run.device)
    dataset = dataset.to(device)
    if config.data.hold_out:
        dataset = dataset.holding_out(config.data.hold_out)
    model = build_net(config.model, dataset, config.plan.seed).to(device)
    task = make_task(
        model,
        dataset.train,
        config.method,
        config.plan,
        held_out=dataset.test,
        augment=dataset.augment if config.data.augment else None,
        clip=config.data.clip_range,
        evaluation=config.evaluation,
    )
    return Job(config, task, dataset.provenance.record(), architecture_of(config.model, dataset).record())


def _own_job(run: RunDirectory, data_dir: Path | None) -> Job:
    """The job of a run that began in Python, from what its directory keeps."""
    config, known = run.config, run.read_json("environment.json")
    missing = known.get("only_in_python", ())
    if missing:
        raise RunError(
            f"{run.path} was begun in Python with its own {' and '.join(missing)}, which a command cannot know: "
            f"go on with the same call, sb.train(..., out={str(run.path)!r})"
        )
    device = device_of(config.run.device)
    model = recorded_net(known.get("architecture", {}), run.path).to(device)
    if not run.checkpoints().steps():
        raise RunError(f"{run.path} has no checkpoint yet, and its first weights were made in Python: start it anew")
    if config.data.name == OWN:
        (train, held_out), augment = own.read(run.path, device), None
    else:
        dataset = data.load(config.data.name, data_dir).to(device)
        train, held_out, augment = dataset.train, dataset.test, dataset.augment if config.data.augment else None
    task = make_task(
        model, train, config.method, config.plan,
        held_out=held_out, augment=augment, clip=config.data.clip_range, evaluation=config.evaluation,
    )  # fmt: skip
    return Job(config, task, known.get("data", {}), known.get("architecture", {}))


def _alone(run: RunDirectory, job: Job, caller: Caller, group: Group) -> RunResult:
    with run.alone() if group.leader else contextlib.nullcontext():
        return execute(run, job, caller, group)


def execute(run: RunDirectory, job: Job, caller: Caller, group: Group, threads: int | None = None) -> RunResult:
    """Train in a run directory that this process has for itself; `threads`: those that are set already."""
    known, config = run.read_json("environment.json"), job.config
    if known.get("data", job.data).get("digest") != job.data.get("digest"):
        raise RunError(f"the data differ from those the run {run.path} began with; point --data-dir at the same files")
    if threads is None:
        threads = _threads(config, known, caller, group)
        torch.set_num_threads(threads)
    if group.leader and known.get("processes", group.size) != group.size:
        caller.say(
            f"the run began with {known['processes']} processes and goes on with {group.size}: "
            "it will not end with the same bits"
        )
    if group.leader:
        run.write_json("environment.json", _record(job, threads, group, known))
    metrics = MetricsFile(run.metrics, run.path / "events") if group.leader else Observer()
    watching = (caller.watch(job.task),) if caller.watch is not None and group.leader else ()
    try:
        outcome = Loop(
            job.task,
            Surroundings(
                group=group,
                checkpoints=run.checkpoints(config.run.keep),
                checkpoint_seconds=config.run.checkpoint_seconds,
                log_every=config.run.log_every,
                observer=Observers((metrics, caller.observer, *watching)) if group.leader else Observer(),
                stop=caller.stop,
            ),
        ).run()
    finally:
        if isinstance(metrics, MetricsFile):
            metrics.close()
    errors = _finish(run, job, outcome, group) if outcome.finished else None
    return RunResult(run, outcome, errors, group.leader, peak_memory(device_of(config.run.device)))


def _finish(run: RunDirectory, job: Job, outcome: Outcome, group: Group) -> Errors | None:
    """Write the final weights, then measure them on the whole held-out split with rounding control."""
    task, config = job.task, job.config
    if group.leader:
        replace_file(run.final, task.model.state_dict())
    if task.held_out is None:
        return None
    whole, seed, began = replace(config.evaluation, images=None), config.plan.seed, time.monotonic()
    errors = measure(
        task.model, task.held_out, whole, soundness=Soundness.DEPLOYED, clip=task.clip, group=group, seed=seed
    )
    if group.leader:
        record = {"name": config.name, "step": outcome.step, "best_step": outcome.best_step}
        seconds = round(time.monotonic() - began, 1)
        peak = peak_memory(device_of(config.run.device))
        numbers = {"evaluation_seconds": seconds, **({"peak_memory_mb": round(peak / 1e6)} if peak else {})}
        if config.data.hold_out:
            numbers["held_out_of_training"] = config.data.hold_out  # these are not errors on test images
        run.write_json("results.json", {**record, **errors.record(), **numbers})
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


def _record(job: Job, threads: int, group: Group, known: dict[str, object]) -> dict[str, object]:
    now = describe_environment()
    if not known:
        return {
            **now,
            "seed": job.config.plan.seed,
            "threads": threads,
            "processes": group.size,
            "data": job.data,
            "architecture": job.architecture,
            **({"only_in_python": list(job.only_in_python)} if job.only_in_python else {}),
        }
    changed = {k: v for k, v in now.items() if known.get(k) != v}
    resumed = known.get("resumed", [])
    return {**known, "resumed": [*(resumed if isinstance(resumed, list) else []), changed]}


def device_of(name: str) -> torch.device:
    """The device of that name, tried with one number."""
    try:
        device = torch.device(name)
        torch.zeros((), device=device).item()  # "meta" has no numbers
    except (RuntimeError, AssertionError, ImportError) as error:
        meant = _device_meant(name)
        if meant is not None:
            raise ConfigError(f"the device {name!r} is spelt {meant!r}") from error
        raise ConfigError(f"the device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def _device_meant(name: str) -> str | None:
    """PyTorch's spelling of what is easily written otherwise: GPU, CUDA, cuda0, cuda 1; None if it is that already."""
    found = re.fullmatch(r"\s*(cpu|cuda|gpu|mps|metal)[\s:_-]*(\d*)\s*", name.lower())
    if found is None:
        return None
    kind = {"gpu": "cuda", "metal": "mps"}.get(found[1], found[1])
    meant = f"{kind}:{found[2]}" if found[2] else kind
    return meant if meant != name else None
