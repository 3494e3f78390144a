"""How far a command has come, on standard error: a bar with the time left, or a line now and then off a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PLAIN_SECONDS = 30.0


class Bar:
    """Shows ``done`` of ``total``; when the user stops the command, says how far it came and what is ``kept``."""

    def __init__(self, what: str, kept: str = "nothing was kept") -> None:
        self.what, self.kept = what, kept
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._state = ""
        self._began = self._printed = time.monotonic()

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = (
                TaskProgressColumn(),
                BarColumn(30),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self.what, total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            at = f" at {self._state}" if self._state else ""
            typer.echo(f"stopped{at}; {self.kept}", err=True)

    def show(self, done: int, total: int, text: str = "") -> None:
        """``done`` of ``total`` units of work, and what was found so far."""
        self._state = f"{done / max(1, total):.0%}" + (f", {text}" if text else "")
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total, completed=done, description=text or self.what)
        elif time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            left = (self._printed - self._began) * (total - done) / max(1, done)
            typer.echo(f"{self.what}: {self._state}, {left:.0f} s left", err=True)
