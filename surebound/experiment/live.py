"""A live line on a terminal, or a plain one now and then elsewhere: what every bar of ours is made of."""

from __future__ import annotations

import sys
import time
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

PLAIN_SECONDS = 30.0

quiet: ContextVar[bool] = ContextVar("quiet", default=False)
"""Whether nobody wants to hear how far it is: no bars, no lines."""


class LiveBar:
    """A bar on a terminal, from ``_open`` to the end of the ``with``; elsewhere a line whenever one is ``_due``."""

    def __init__(self, live: bool | None = None) -> None:
        self.live = (sys.stderr.isatty() if live is None else live) and not quiet.get()
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
        if quiet.get() or time.monotonic() - self._printed < PLAIN_SECONDS:
            return False
        self._printed = time.monotonic()
        return True
