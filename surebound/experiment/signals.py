"""Signals that ask for a stop: what is under way ends its step and keeps what it has."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals(*numbers: int) -> Iterator[list[int]]:
    """A list that receives the signals (SIGINT and SIGTERM) instead of the process; a second one acts as usual.

    Only the main thread may choose what a signal does: in others the list stays empty.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    chosen = numbers or (signal.SIGINT, signal.SIGTERM)
    before = {int(number): signal.getsignal(number) for number in chosen}

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(number: int) -> int:
    """What shells report of a program that a signal ended: 130 for Ctrl-C."""
    return 128 + number
