"""A helper process must not outlive the one that started it."""

from __future__ import annotations

import os
import threading
import time

_CHECK_SECONDS = 1.0


def die_with_parent() -> None:
    """Watch the parent from a thread and end this process when it is gone, even in the middle of a solve."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_CHECK_SECONDS)
    os._exit(1)
