"""Signals that ask a command to stop: it ends what it is at and keeps what it has."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals() -> Iterator[list[int]]:
    """A list that receives SIGINT and SIGTERM instead of the process; a second one acts as usual."""
    received: list[int] = []
    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

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
