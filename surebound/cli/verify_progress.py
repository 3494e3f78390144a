"""Verification on the terminal: counts per stage and the time left; a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter as Count
from types import TracebackType
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fractions import Fraction

    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from surebound.verify import Progress

PLAIN_SECONDS = 30.0


class Counts:
    """A progress callback for `verify`; writes to standard error."""

    def __init__(self, live: bool | None = None) -> None:
        self.live = sys.stderr.isatty() if live is None else live
        self._counts: Count[tuple[str, str]] = Count()
        self._eps: Fraction | None = None
        self._began = self._printed = time.monotonic()
        self._before = 0
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Counts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, now: Progress) -> None:
        if now.eps != self._eps:
            self._restart(now)
        for record in now.records:
            self._counts[record.verdict.stage, record.verdict.status.value] += 1
        if self.live:
            self._show(now)
        elif time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            text = f"eps {now.eps}: {now.done}/{now.total}, {self._left(now):.0f} s left  {self._text()}"
            typer.echo(text, err=True)

    def _restart(self, now: Progress) -> None:
        self._eps, self._before, self._began = now.eps, now.done, time.monotonic()
        self._counts.clear()
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        if now.done:
            typer.echo(f"eps {now.eps}: {now.done} of {now.total} images are settled already", err=True)

    def _left(self, now: Progress) -> float:
        """Seconds, if the rest goes like what was done so far."""
        done = now.done - self._before
        return (time.monotonic() - self._began) * (now.total - now.done) / max(1, done)

    def _text(self) -> str:
        return "  ".join(f"{stage} {status} {count}" for (stage, status), count in self._counts.items())

    def _show(self, now: Progress) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        if self._bar is None:
            columns = (
                MofNCompleteColumn(),
                BarColumn(20),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self._bar = RichProgress(*columns, console=Console(stderr=True))
            self._bar.start()
        if self._task is None:
            self._task = self._bar.add_task("", total=now.total)
        self._bar.update(self._task, completed=now.done, description=f"eps {now.eps}  {self._text()}")
