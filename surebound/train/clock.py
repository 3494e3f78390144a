"""Wall-clock time: it decides when to write and what to announce, never what is computed."""

from __future__ import annotations

import time


class Clock:
    """When the last report and the last checkpoint were, and how fast the run goes."""

    def __init__(self, step: int, checkpoint_seconds: float) -> None:
        self._seconds = checkpoint_seconds
        self._started = self._logged = self._saved = time.monotonic()
        self._first = self._last = step
        self._idle = 0.0

    def checkpoint_due(self) -> bool:
        """Say whether enough time has passed since the last checkpoint."""
        return time.monotonic() - self._saved >= self._seconds

    def checkpointed(self) -> None:
        """Note that a checkpoint was written just now."""
        self._saved = time.monotonic()

    def paused(self, seconds: float) -> None:
        """Time that was not spent on steps: evaluations."""
        self._idle += seconds

    def pace(self, step: int, steps: int, batch_size: int) -> tuple[float, float]:
        """Samples per second of training since the last call, and the seconds left at the pace so far."""
        now = time.monotonic()
        speed = (step - self._last) * batch_size / max(now - self._logged - self._idle, 1e-9)
        each = (now - self._started) / max(step - self._first, 1)
        self._logged, self._last, self._idle = now, step, 0.0
        return speed, each * (steps - step)
