"""The order in which units are handed out."""

from __future__ import annotations

import math
from collections import deque
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from surebound.search.verdicts import Example, State
from surebound.verify.schedule import UnitSchedule
from surebound.verify.work import Unit, UnitAnswer


class OneWorker:
    """An executor that answers at once: the first segment learns margins, the second decides nothing."""

    def __init__(self, margins: dict[int, list[float]]) -> None:
        self.margins, self.seen, self._answers = margins, [], deque[tuple[Unit, UnitAnswer]]()

    @property
    def free(self) -> int:
        return 1 - len(self._answers)

    def submit(self, unit: Unit) -> None:
        self.seen.append((unit.segment, [each.index for each in unit.examples]))
        after = [self._bounded(each) for each in unit.examples] if unit.segment == 0 else unit.examples
        self._answers.append((unit, UnitAnswer(open=tuple(after))))

    def next(self) -> tuple[Unit, UnitAnswer]:
        return self._answers.popleft()

    def _bounded(self, example: Example) -> Example:
        state = State(np.array([self.margins[example.index]] * 3))
        return Example(example.index, example.image, example.label, example.eps, example.digest, state=state)


def run(margins: dict[int, list[float]]) -> list[tuple[int, list[int]]]:
    """Send examples with these margins through two segments; return the units in the order they were handed out."""
    cheap, dear = (SimpleNamespace(name=name, chunk=chunk) for name, chunk in (("cheap", 2), ("dear", 1)))
    executor: Any = OneWorker(margins)
    cascade: Any = SimpleNamespace(segments=((cheap,), (dear,)))
    image = np.zeros((1, 1, 1), dtype=np.float32)
    examples = [Example(i, image, 0, Fraction(1, 10), "") for i in margins]
    records = [each for group in UnitSchedule(cascade, executor).run(examples) for each in group]
    assert sorted(record.index for record in records) == sorted(margins)
    return executor.seen


def test_examples_far_from_a_proof_start_first_in_the_dear_segment() -> None:
    margins = {0: [0.1, -1.0], 1: [0.5, 0.6], 2: [2.0, -9.0], 3: [-1.0, 0.2], 4: [math.inf, 0.3]}
    seen = run(margins)
    assert seen[:3] == [(0, [0, 1]), (0, [2, 3]), (0, [4])]  # cheap ones as they come, before anything dear
    assert seen[3:] == [(1, [2]), (1, [1]), (1, [4]), (1, [3]), (1, [0])]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_known_does_not_count(value: float) -> None:
    assert State(np.array([[value, 0.5]] * 3)).distance == 0.5
