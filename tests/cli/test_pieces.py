"""Pieces of work follow the pace, and are all of it."""

from __future__ import annotations

import pytest

from surebound.cli import pieces as module
from surebound.cli.pieces import pieces


def sizes(monkeypatch: pytest.MonkeyPatch, count: int, most: int, seconds: list[float]) -> list[int]:
    """Sizes of the pieces if a piece of n things takes ``seconds[k]`` each, the last one from then on."""
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    found: list[int] = []
    for part in pieces(count, most):
        assert part.start == sum(found)
        found.append(part.stop - part.start)
        now += found[-1] * seconds[min(len(found), len(seconds)) - 1]
    assert sum(found) == count
    return found


@pytest.mark.parametrize(
    ("count", "most", "seconds", "expected"),
    [
        (0, 100, [1.0], []),
        (3, 100, [30.0], [1, 1, 1]),  # a slow method: image by image
        (300, 100, [0.0], [1, 4, 16, 64, 100, 100, 15]),  # a quick one soon takes whole batches
        (30, 100, [5.0, 0.125], [1, 1, 4, 8, 8, 8]),  # the first waits for tracing; then a second each
        (20, 3, [0.01], [1, 3, 3, 3, 3, 3, 3, 1]),  # never more than was asked for
        (30, 100, [0.125, 0.125, 0.5], [1, 4, 8, 2, 2, 2, 2, 2, 2, 2, 2, 1]),  # it becomes slower
    ],
)
def test_pieces_take_about_a_second(
    monkeypatch: pytest.MonkeyPatch, count: int, most: int, seconds: list[float], expected: list[int]
) -> None:
    assert sizes(monkeypatch, count, most, seconds) == expected


def test_fixed_pieces_are_all_of_one_size() -> None:
    assert [part.stop - part.start for part in pieces(7, 3, fixed=True)] == [3, 3, 1]
