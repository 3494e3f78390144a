"""A training run in a notebook: one bar that is updated in place, without widgets."""

from __future__ import annotations

import html
import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from surebound.experiment.terminal import describe, describe_errors
from surebound.train.evaluate import Errors
from surebound.train.observe import Observer, Progress

SECONDS = 0.2  # between two updates: a browser needs no more


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and hasattr(found, "kernel")


class NotebookBar(Observer, AbstractContextManager["NotebookBar"]):
    """Shows a bar, the numbers of `Terminal`, and the last measurement."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._handle: Any = None
        self._shown = -SECONDS
        self._bar = self._measured = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._update()

    def started(self, step: int, steps: int) -> None:
        self._bar = _bar(self.name, step, steps, "")
        self._update()

    def progressed(self, progress: Progress) -> None:
        self._bar = _bar(self.name, progress.step, progress.steps, describe(progress))
        if time.monotonic() - self._shown >= SECONDS:
            self._update()

    def evaluated(self, step: int, errors: Errors) -> None:
        self._measured = f"<div>step {step}: {html.escape(describe_errors(errors))}</div>"
        self._update()

    def _update(self) -> None:
        from IPython.display import HTML, display

        self._shown = time.monotonic()
        content = HTML(self._bar + self._measured)
        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)


def _bar(name: str, step: int, steps: int, line: str) -> str:
    return (
        f'<div><code>{html.escape(name)}</code> <progress value="{step}" max="{steps}" style="width:14em"></progress> '
        f"<code>{html.escape(line)}</code></div>"
    )
