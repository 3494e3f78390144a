"""`surebound reproduce`: the paper's tables and figures, by one command each."""

from __future__ import annotations

import enum
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.exits import EXIT_STOPPED
from surebound.cli.options import DataDir, Device
from surebound.cli.output import Cell, print_table
from surebound.errors import InputError

if TYPE_CHECKING:
    from surebound.experiment.run import Caller
    from surebound.reproduction.artefacts import Artefact
    from surebound.reproduction.bench import Bench
    from surebound.reproduction.execute import Step
    from surebound.reproduction.scale import Scale
    from surebound.reproduction.work import WorkPlan


class ScaleName(enum.StrEnum):
    """The values of surebound.reproduction.scale.Scale, which this module must not import at the top."""

    SMOKE = "smoke"
    LAPTOP = "laptop"
    PAPER = "paper"


def register(app: typer.Typer) -> None:
    app.command("reproduce")(reproduce)


def reproduce(
    artefacts: Annotated[
        list[str] | None,
        typer.Argument(help="Names from --list, e.g. table-4 figure-3; `all` for all.", show_default=False),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the tables and figures.")] = False,
    scale: Annotated[
        ScaleName,
        typer.Option(help="smoke: seconds, meaningless numbers; laptop: hours; paper: days on GPUs."),
    ] = ScaleName.SMOKE,
    out: Annotated[
        Path | None, typer.Option(help="Directory for runs, verdicts and artefacts.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(help="A directory with finished runs to reuse if they are the same; repeatable."),
    ] = None,
    plan_only: Annotated[bool, typer.Option("--plan", help="Say what would be done, and stop.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Worker processes of verifications (default: one per core).")
    ] = None,
    device: Device = None,
) -> None:
    """Make the paper's tables and figures (Gowal et al. 2018), with our numbers beside the paper's.

    Says first what is there, what will be trained and how long that will take. What is interrupted goes on where it
    was when the command is given again; what is finished is reused, also by other artefacts.

    Examples:

      surebound reproduce --list

      surebound reproduce table-4 --scale laptop --out reproduction --plan

      surebound reproduce figure-4 figure-2 --scale laptop --out reproduction --data-dir data
    """
    from surebound.reproduction.artefacts import ARTEFACTS, find
    from surebound.reproduction.scale import Scale

    if listing:
        rows: list[list[Cell]] = [[a.name, a.alias, a.title] for a in ARTEFACTS]
        print_table(("name", "or", "what"), rows)
        return
    if not artefacts or out is None:
        raise InputError("name one or more artefacts (`surebound reproduce --list`) and a directory with --out")
    wanted = list(ARTEFACTS) if artefacts == ["all"] else [find(name) for name in artefacts]
    level = Scale(scale.value)
    bench = _bench(out, _data(level, out, data_dir), tuple(reuse or ()), jobs, level, device)
    plans = [artefact.plan(level) for artefact in wanted]
    _show(plans, bench, quick=level is Scale.SMOKE)
    if plan_only:
        return
    _work(wanted, plans, bench, level, out)


def _work(wanted: list[Artefact], plans: list[WorkPlan], bench: Bench, level: Scale, out: Path) -> None:
    from surebound.experiment.signals import stop_on_signals
    from surebound.experiment.terminal import caller
    from surebound.reproduction.artefacts.write import write
    from surebound.reproduction.execute import execute

    def say(text: str) -> None:
        typer.echo(text, err=True)

    try:
        for artefact, plan in zip(wanted, plans, strict=True):
            with stop_on_signals() as stopped:  # a training ends its step and saves itself

                def caller_for(name: str, stopped: list[int] = stopped) -> Caller:
                    return caller(name, lambda: bool(stopped))

                bench = bench.with_caller(caller_for)
                if not execute(replace(plan, checks=(), computations=()), bench, say) or stopped:
                    raise KeyboardInterrupt
            execute(plan, bench, say)  # every image that is decided is kept
            drawn = artefact.draw(bench, level)
            paths = write(artefact, drawn, level, out)
            typer.echo(f"{artefact.name}: {drawn.headline}\n  {paths[0]}")
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        raise typer.Exit(EXIT_STOPPED) from None


def _data(level: Scale, out: Path, data_dir: Path | None) -> Path | None:
    """At scale smoke generated images under OUT/data: nobody's own data are touched."""
    return out / "data" if str(level) == "smoke" else data_dir


def _bench(
    out: Path, data_dir: Path | None, reuse: tuple[Path, ...], jobs: int | None, level: Scale, device: str | None
) -> Bench:
    from surebound.experiment.run import device_of
    from surebound.reproduction.bench import Bench

    missing = [path for path in reuse if not path.is_dir()]
    if missing:
        raise InputError(f"--reuse {missing[0]} is no directory; name one that holds run directories")
    if device is not None:
        device_of(device)  # said before anything is planned
    workers = None if str(level) == "smoke" else jobs or os.cpu_count() or 1
    return Bench(out, data_dir, reuse, jobs=workers, device=device)


def _show(plans: list[WorkPlan], bench: Bench, *, quick: bool) -> None:
    """The plan as a table; equal work once. Speeds are measured for it, except where all of it takes seconds."""
    from surebound.reproduction.execute import steps
    from surebound.reproduction.rate import Speeds

    rates = None if quick else Speeds(bench)
    found: dict[tuple[str, str, str], Step] = {}
    for plan in plans:
        for step in steps(plan, bench, rates):
            found[(step.kind, step.name, step.note)] = step
    rows: list[list[Cell]] = [[s.kind, s.name, s.state, duration(s.seconds), s.note] for s in found.values()]
    if rows:
        print_table(("work", "what", "state", "time", ""), rows)
    known = sum(s.seconds or 0.0 for s in found.values())
    unknown = sum(s.seconds is None and not s.done for s in found.values())
    if not quick:
        rest = f"; {unknown} step(s) whose time is not known beforehand" if unknown else ""
        typer.echo(f"about {duration(known)} in all{rest}" if known or unknown else "nothing is left to be computed")
    for text in dict.fromkeys(text for plan in plans for text in plan.missing):
        typer.echo(f"left out: {text}")


def duration(seconds: float | None) -> str | None:
    """3700 -> `1 h 02 min`."""
    if seconds is None:
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds else ""
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
