"""A training run on standard error: one live line, or a plain line now and then where that is no terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

from surebound.experiment.live import LiveBar, quiet
from surebound.experiment.run import Caller
from surebound.train.evaluate import Errors
from surebound.train.observe import Observer, Progress


class Terminal(LiveBar, Observer):
    """Shows step, time left, loss, errors, radius, kappa and samples per second."""

    def __init__(self, name: str, live: bool | None = None) -> None:
        super().__init__(live)
        self.name = name
        self._printed = -math.inf  # the first line is due at once

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            write_line(text)

    def started(self, step: int, steps: int) -> None:
        self.say(f"{self.name}: {'resuming at' if step else 'starting at'} step {step} of {steps}")
        if not self.live:
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn

        line = TextColumn("{task.fields[line]}")
        bar = self._open(line, BarColumn(20)) if Console(stderr=True).width >= 120 else self._open(line)
        self._task = bar.add_task(self.name, total=steps, completed=step, line="")

    def progressed(self, progress: Progress) -> None:
        if self._bar is not None and self._task is not None:
            line = describe(progress, self._bar.console.width)
            self._bar.update(self._task, completed=progress.step, line=line)
        elif self._due() or progress.step == progress.steps:
            write_line(describe(progress))

    def evaluated(self, step: int, errors: Errors) -> None:
        self.say(f"step {step}: {describe_errors(errors)}")

    def saved(self, step: int, path: Path) -> None:
        """Nothing to see: checkpoints are silent."""


def write_line(text: str) -> None:
    """Write a plain line to standard error, unless nobody wants to hear it."""
    if quiet.get():
        return
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def caller(name: str, stop: Callable[[], bool] = lambda: False) -> Caller:
    """Let a run tell of itself on the terminal."""
    terminal = Terminal(name)
    return Caller(terminal, stop, terminal.say)


def describe(progress: Progress, width: int | None = None) -> str:
    """One line of training numbers; of its last parts those are left out that do not fit into ``width``."""
    names = {"clean_error": "clean", "verified_error": "verified", "attacked_error": "attacked"}
    parts = [
        f"{progress.step}/{progress.steps} ETA {left(progress.seconds_left)}",
        f"loss {progress.scalars.get('loss', float('nan')):.3f}",
        *(f"{short} {progress.scalars[key]:.1%}" for key, short in names.items() if key in progress.scalars),
        f"eps {progress.epsilon:.3g}",
        f"kappa {progress.kappa:.2g}",
        f"{progress.samples_per_second:.0f}/s",
    ]
    while width is not None and len(parts) > 1 and len(" ".join(parts)) > width:
        parts.pop()
    return " ".join(parts)


def describe_errors(errors: Errors) -> str:
    """One line of held-out error rates."""
    of = "" if errors.norm == "linf" else f"{errors.norm}:"
    verified = "".join(f"  verified@{of}{float(r):.3g} {v:.2%}" for r, v in errors.verified.items())
    attacked = "".join(f"  pgd@{float(r):.3g} {v:.2%}" for r, v in errors.attacked.items())
    return f"held-out clean {errors.clean:.2%}{verified}{attacked}"


def left(seconds: float) -> str:
    """h:mm:ss."""
    minutes, s = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{s:02d}"
