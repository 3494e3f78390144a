"""Verification on the terminal: counts per stage and the time left; a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import typer

from surebound.cli.notes import note
from surebound.experiment.live import LiveBar

if TYPE_CHECKING:
    from fractions import Fraction

    from surebound.verify import Progress


class Counts(LiveBar):
    """A progress callback for `verify`; writes to standard error."""

    def __init__(self, live: bool | None = None) -> None:
        super().__init__(live)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._eps: Fraction | None = None
        self._before = 0

    def __call__(self, now: Progress) -> None:
        if now.eps != self._eps:
            self._restart(now)
        for record in now.records:
            self._counts[record.verdict.stage, record.verdict.status.value] += 1
        if self.live:
            self._show(now)
        elif self._due():
            text = f"eps {now.eps}: {now.done}/{now.total}, {self._left(now):.0f} s left  {self._text()}"
            typer.echo(text, err=True)

    def _restart(self, now: Progress) -> None:
        self._eps, self._before, self._began = now.eps, now.done, time.monotonic()
        self._counts.clear()
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        if now.done:
            note(f"eps {now.eps}: {now.done} of {now.total} images are settled already")

    def _left(self, now: Progress) -> float:
        """Seconds, if the rest goes like what was done so far."""
        done = now.done - self._before
        return (time.monotonic() - self._began) * (now.total - now.done) / max(1, done)

    def _text(self) -> str:
        return "  ".join(f"{stage} {status} {count}" for (stage, status), count in self._counts.items())

    def _show(self, now: Progress) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        text = TextColumn("{task.description}")
        bar = self._bar or self._open(MofNCompleteColumn(), BarColumn(20), TimeRemainingColumn(), text)
        if self._task is None:
            self._task = bar.add_task("", total=now.total)
        bar.update(self._task, completed=now.done, description=f"eps {now.eps}  {self._text()}")
