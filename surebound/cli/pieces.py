"""Work in pieces that take about a second: the bar soon knows the time left, and Ctrl-C loses little."""

from __future__ import annotations

import time
from collections.abc import Iterator

#: What a piece should take; a caller may wait that long for its Ctrl-C.
SECONDS = 1.0
#: One image at first: nothing is known of the method yet.
FIRST = 1
#: At most so many times the piece before: the first one also waits for what is done only once.
GROWTH = 4


def pieces(count: int, most: int, *, fixed: bool = False) -> Iterator[slice]:
    """Consecutive slices of ``count`` things, at most ``most`` in each, as many as the piece before was quick for;
    ``fixed``: always ``most``, whatever it takes.

    >>> [part.stop - part.start for part in pieces(10, most=4)]
    [1, 4, 4, 1]
    """
    start, size = 0, most if fixed else FIRST
    while start < count:
        began = time.monotonic()
        stop = min(count, start + min(size, most))
        yield slice(start, stop)
        size = most if fixed else _next_size(stop - start, time.monotonic() - began)
        start = stop


def _next_size(size: int, seconds: float) -> int:
    """How many fit into a piece if ``size`` took ``seconds``."""
    fit = size * SECONDS / seconds if seconds > 0 else size * GROWTH
    return max(1, int(min(fit, size * GROWTH)))
