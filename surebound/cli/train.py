"""`surebound train`, `resume`, `presets`, `show-config`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.exits import EXIT_STOPPED
from surebound.cli.options import DataDir, Device, Form, Quiet
from surebound.cli.output import Format, print_table
from surebound.errors import InputError

if TYPE_CHECKING:
    from fractions import Fraction

    from surebound.experiment.config import Config
    from surebound.experiment.overrides import Overrides
    from surebound.experiment.run import Caller, RunResult
    from surebound.report.animation import BoundsAnimation
    from surebound.train.observe import Observer
    from surebound.train.task import Task

PresetArgument = Annotated[str, typer.Argument(help="A preset (`surebound presets`) or a configuration file (.toml).")]
MethodName = Annotated[str | None, typer.Option("--method", help="Train by another method, e.g. ibp, mtl-ibp, sabr.")]
EpsTrain = Annotated[str | None, typer.Option("--eps-train", help="Radius to train for, e.g. 0.4 or 8/255.")]
Threat = Annotated[
    str | None, typer.Option(help="Train and measure for balls of another norm: l2:0.5, l1:1 (instead of --eps-train).")
]
EpsTest = Annotated[
    list[str] | None, typer.Option("--eps-test", help="Radius to measure at; may be given several times.")
]
Steps = Annotated[int | None, typer.Option(help="Length in steps; warm-up, ramp and decays stretch with it.")]
Epochs = Annotated[float | None, typer.Option(help="Length in epochs; warm-up, ramp and decays stretch with it.")]
BatchSize = Annotated[int | None, typer.Option(help="Images per step, over all processes.")]
Accumulate = Annotated[
    int | None,
    typer.Option(help="Take each batch in so many parts, in the memory of one; same gradients (BatchNorm: per part)."),
]
SyncBatchNorm = Annotated[
    bool | None,
    typer.Option(
        "--sync-batch-norm", help="With several processes: BatchNorm sees the whole batch, not each one's share."
    ),
]
PlanOnly = Annotated[
    bool,
    typer.Option("--plan", help="Try a few steps, say what the run will do, take and need, and start nothing."),
]
Warmup = Annotated[int | None, typer.Option(help="Steps before the radius grows.")]
RampSteps = Annotated[int | None, typer.Option("--ramp", help="Steps over which the radius grows.")]
KappaFinal = Annotated[float | None, typer.Option(help="Final weight of the clean loss (the paper: 0.5 or 0).")]
LearningRate = Annotated[float | None, typer.Option(help="Initial learning rate.")]
Seed = Annotated[int | None, typer.Option(help="Seed of weights, order, augmentation and attacks.")]
L1 = Annotated[float | None, typer.Option("--l1", help="Weight of the sum of the weights' sizes in the loss.")]
HoldOut = Annotated[
    int | None,
    typer.Option(help="Measure this many training images, left out of training, instead of the test images."),
]
Threads = Annotated[int | None, typer.Option(help="Threads; by default chosen by a short trial.")]
CheckpointSeconds = Annotated[float | None, typer.Option(help="Seconds between checkpoints.")]
Out = Annotated[Path | None, typer.Option("--out", help="Run directory; by default a new one under runs/.")]
Animation = Annotated[
    Path | None, typer.Option(help="Also write a GIF: the bounds of a held-out image tightening during training.")
]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.")]


def train(
    preset: PresetArgument,
    method: MethodName = None,
    eps_train: EpsTrain = None,
    threat: Threat = None,
    eps_test: EpsTest = None,
    steps: Steps = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    accumulate: Accumulate = None,
    sync_batch_norm: SyncBatchNorm = None,
    warmup: Warmup = None,
    ramp: RampSteps = None,
    kappa_final: KappaFinal = None,
    learning_rate: LearningRate = None,
    seed: Seed = None,
    l1: L1 = None,
    hold_out: HoldOut = None,
    device: Device = None,
    threads: Threads = None,
    checkpoint_seconds: CheckpointSeconds = None,
    data_dir: DataDir = None,
    out: Out = None,
    animation: Animation = None,
    plan: PlanOnly = False,
    quiet: Quiet = False,
) -> None:
    """Train a network by a preset or a configuration file; Ctrl-C checkpoints and stops.

    Examples:

      surebound train digits-ibp --out runs/digits

      surebound train digits-ibp --out runs/digits --animation bounds.gif

      surebound train digits-ibp --threat l2:0.5
    """
    from surebound.experiment import run
    from surebound.experiment.overrides import Overrides
    from surebound.experiment.rundir import fresh_path

    tested = tuple(r for text in eps_test if (r := _radius(text, "--eps-test")) is not None) if eps_test else None
    norm, radius = _ball(eps_train, threat)
    overrides = Overrides(
        method=method,
        eps_train=radius,
        norm=norm,
        eps_test=tested if tested or norm is None or radius is None else (radius,),
        steps=steps,
        epochs=epochs,
        batch_size=batch_size,
        accumulate=accumulate,
        sync_batch_norm=sync_batch_norm,
        warmup=warmup,
        ramp=ramp,
        kappa_final=kappa_final,
        learning_rate=learning_rate,
        seed=seed,
        l1=l1,
        hold_out=hold_out,
        device=device,
        threads=threads,
        checkpoint_seconds=checkpoint_seconds,
    )
    config = _configuration(preset, overrides)
    if plan:
        _forecast(config, data_dir)
        return
    path = out or fresh_path(config)
    movies: list[BoundsAnimation] = []
    watch = None if animation is None else functools.partial(_watch, movies)
    _supervise(config.name, path, data_dir, lambda caller: run.start(config, path, replace(caller, watch=watch)))
    for movie in movies:
        typer.echo(f"animation: {movie.write(animation or path)}")


def _watch(movies: list[BoundsAnimation], task: Task) -> Observer:
    """Make an observer of the first held-out images, at the radius of the training or the largest that is measured."""
    import torch

    from surebound.region import LinfBall
    from surebound.report.animation import BoundsAnimation

    source = task.train if task.held_out is None else task.held_out
    images, labels = source.batch(torch.arange(min(len(source), 8)))
    radii = [task.plan.eps_train, *sorted(task.evaluation.radii, reverse=True)]
    eps = next((radius for radius in radii if radius > 0), None)
    if eps is None:
        raise InputError("--animation needs a radius: give --eps-train or --eps-test")
    if task.plan.norm != "linf":
        raise InputError(f"--animation shows l-infinity balls; leave it out with --threat {task.plan.norm}")
    movies.append(BoundsAnimation(task.model, LinfBall(images, eps, task.clip), labels))
    return movies[-1]


def resume(path: RunArgument, data_dir: DataDir = None, quiet: Quiet = False) -> None:
    """Continue a run from its last checkpoint, to the same bits as if it had never stopped."""
    from surebound.experiment import run
    from surebound.experiment.rundir import RunDirectory

    name = RunDirectory.open(path).config.name
    _supervise(name, path, data_dir, lambda caller: run.resume(path, caller))


def presets(
    contains: Annotated[str, typer.Argument(help="Show only names that contain this.")] = "",
    form: Form = Format.TABLE,
) -> None:
    """List the presets."""
    from surebound.experiment.presets import preset, preset_names

    columns = ("preset", "method", "eps_train", "steps", "batch", "warm-up", "ramp")
    rows = []
    for name in preset_names():
        plan = preset(name).plan
        if contains in name:
            radius = str(plan.eps_train) if plan.eps_train else None
            rows.append((name, preset(name).method.name, radius, plan.steps, plan.batch_size, plan.warmup, plan.ramp))
    if not rows:
        raise InputError(f"no preset contains {contains!r}; 'surebound presets' lists all of them")
    print_table(columns, rows, form)


def show_config(preset: PresetArgument) -> None:
    """Print a preset, or a run's configuration, as TOML; edit it and pass the file to `train`."""
    from surebound.experiment.overrides import Overrides

    typer.echo(_configuration(preset, Overrides()).to_toml(), nl=False)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(train)
    app.command()(resume)
    app.command()(presets)
    app.command("show-config")(show_config)


def _configuration(name: str, overrides: Overrides) -> Config:
    from surebound.experiment.config import Config
    from surebound.experiment.presets import preset

    path = Path(name)
    if path.suffix == ".toml":
        config = Config.read(path)
    elif (path / "config.toml").is_file():
        config = Config.read(path / "config.toml")
    else:
        config = preset(name)
    return overrides.apply(config)


def _forecast(config: Config, data_dir: Path | None) -> None:
    """Print what a run would do, take and need."""
    from surebound.experiment.forecast import forecast
    from surebound.experiment.run import Caller
    from surebound.train.observe import Observer

    typer.echo("trying a few steps ...", err=True)
    for line in forecast(config, Caller(Observer(), data_dir=data_dir)).lines():
        typer.echo(line)


def _radius(text: str | None, option: str) -> Fraction | None:
    from surebound.numerics import exact_fraction

    if text is None:
        return None
    radius = exact_fraction(text, option)
    if radius < 0:
        raise InputError(f"{option} {text}: a radius is 0 or more")
    return radius


def _ball(eps: str | None, threat: str | None) -> tuple[str | None, Fraction | None]:
    """Return the norm and the radius to train for, as --eps-train or --threat say them."""
    from surebound.region import BALLS
    from surebound.threats import threat as read

    if threat is None:
        return None, _radius(eps, "--eps-train")
    if eps is not None:
        raise InputError("--eps-train and --threat were both given; use one of them")
    asked = read(threat)
    if asked.name not in BALLS:
        raise InputError(f"--threat {threat}: training knows balls: {', '.join(f'{name}:SIZE' for name in BALLS)}")
    return asked.name, asked.size


def _supervise(name: str, path: Path, data_dir: Path | None, work: Callable[[Caller], RunResult]) -> None:
    """Run `work` with a terminal and with signals that ask it to stop; say how it ended."""
    from surebound.experiment.run import Caller
    from surebound.experiment.signals import stop_on_signals
    from surebound.experiment.terminal import Terminal, describe_errors
    from surebound.train.footprint import gigabytes

    with Terminal(name) as terminal, stop_on_signals() as stopped:
        result = work(Caller(terminal, stop=lambda: bool(stopped), say=terminal.say, data_dir=data_dir))
    if not result.leader:
        return
    if not result.outcome.finished:
        typer.echo(f"stopped after step {result.outcome.step}; continue with: surebound resume {path}", err=True)
        raise typer.Exit(EXIT_STOPPED)
    typer.echo(f"finished: {describe_errors(result.errors) if result.errors else 'no held-out data to measure'}")
    typer.echo(f"peak memory: {gigabytes(result.peak_bytes)}")
    typer.echo(f"run directory: {path}")
