"""A training run on standard error: one live line, or a plain line now and then where that is no terminal."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import typer

from surebound.train.evaluate import Errors
from surebound.train.observe import Observer, Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

PLAIN_SECONDS = 30.0


class Terminal(Observer):
    """Shows step, time left, loss, errors, radius, kappa and samples per second."""

    def __init__(self, name: str, live: bool | None = None) -> None:
        self.name = name
        self.live = sys.stderr.isatty() if live is None else live
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._printed = 0.0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            typer.echo(text, err=True)

    def started(self, step: int, steps: int) -> None:
        self.say(f"{self.name}: {'resuming at' if step else 'starting at'} step {step} of {steps}")
        if not self.live:
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        console, line = Console(stderr=True), TextColumn("{task.fields[line]}")
        columns = (line, BarColumn(20)) if console.width >= 120 else (line,)
        self._bar = RichProgress(*columns, console=console)
        self._task = self._bar.add_task(self.name, total=steps, completed=step, line="")
        self._bar.start()

    def progressed(self, progress: Progress) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=progress.step, line=describe(progress))
        elif time.monotonic() - self._printed >= PLAIN_SECONDS or progress.step == progress.steps:
            self._printed = time.monotonic()
            typer.echo(describe(progress), err=True)

    def evaluated(self, step: int, errors: Errors) -> None:
        self.say(f"step {step}: {describe_errors(errors)}")

    def saved(self, step: int, path: Path) -> None:
        """Nothing to see: checkpoints are silent."""


def describe(progress: Progress) -> str:
    """One line of training numbers."""
    names = {"clean_error": "clean", "verified_error": "verified", "attacked_error": "attacked"}
    errors = "".join(
        f" {short} {progress.scalars[key]:.1%}" for key, short in names.items() if key in progress.scalars
    )
    return (
        f"{progress.step}/{progress.steps} ETA {left(progress.seconds_left)} "
        f"loss {progress.scalars.get('loss', float('nan')):.3f}{errors} eps {progress.epsilon:.3g} "
        f"kappa {progress.kappa:.2g} {progress.samples_per_second:.0f}/s"
    )


def describe_errors(errors: Errors) -> str:
    """One line of held-out error rates."""
    verified = "".join(f"  verified@{float(r):.3g} {v:.2%}" for r, v in errors.verified.items())
    attacked = "".join(f"  pgd@{float(r):.3g} {v:.2%}" for r, v in errors.attacked.items())
    return f"held-out clean {errors.clean:.2%}{verified}{attacked}"


def left(seconds: float) -> str:
    """h:mm:ss."""
    minutes, s = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{s:02d}"
