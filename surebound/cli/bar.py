"""How far a command has come, on standard error: a bar with the time left, or a line now and then off a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import typer

from surebound.experiment.live import LiveBar


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
