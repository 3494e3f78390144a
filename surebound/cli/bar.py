"""How far a command has come, on standard error: a bar with the time left, or a line now and then off a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

PLAIN_SECONDS = 30.0


class LiveBar:
    """A bar on a terminal, from ``_open`` to the end of the ``with``; elsewhere a line whenever one is ``_due``."""

    def __init__(self, live: bool | None = None) -> None:
        self.live = sys.stderr.isatty() if live is None else live
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._began = self._printed = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _open(self, *columns: ProgressColumn, transient: bool = False) -> Progress:
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(*columns, console=Console(stderr=True), transient=transient)
        self._bar.start()
        return self._bar

    def _due(self) -> bool:
        """Say whether it is time for a plain line, and count from there to the next one."""
        if time.monotonic() - self._printed < PLAIN_SECONDS:
            return False
        self._printed = time.monotonic()
        return True


class Bar(LiveBar):
    """Shows ``done`` of ``total``; when the user stops the command, says how far it came and what is ``kept``."""

    def __init__(self, what: str, kept: str = "nothing was kept") -> None:
        super().__init__()
        self.what, self.kept = what, kept
        self._state = ""

    def __enter__(self) -> Self:
        if self.live:
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

            text = TextColumn("{task.description}")
            bar = self._open(TaskProgressColumn(), BarColumn(30), TimeRemainingColumn(), text, transient=True)
            self._task = bar.add_task(self.what, total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            at = f" at {self._state}" if self._state else ""
            typer.echo(f"stopped{at}; {self.kept}", err=True)

    def show(self, done: int, total: int, text: str = "") -> None:
        """``done`` of ``total`` units of work, and what was found so far."""
        self._state = f"{done / max(1, total):.0%}" + (f", {text}" if text else "")
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total, completed=done, description=text or self.what)
        elif self._due():
            left = (self._printed - self._began) * (total - done) / max(1, done)
            typer.echo(f"{self.what}: {self._state}, {left:.0f} s left", err=True)
