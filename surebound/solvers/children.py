"""Processes that we start: Ctrl-C is not theirs, and they must not outlive the one that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

_CHECK_SECONDS = 1.0


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes started in here inherit that SIGINT is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def die_with_parent() -> None:
    """Watch the parent from a thread and end this process when it is gone, even in the middle of a solve."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_CHECK_SECONDS)
    os._exit(1)
