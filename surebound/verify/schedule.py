"""Cuts a run into units, hands them out, tries failures again, and reports every example that is settled."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator

from surebound.search.cascade import Cascade
from surebound.search.record import Record
from surebound.search.verdicts import Example
from surebound.verify.pool import Executor
from surebound.verify.work import Unit, UnitAnswer

_MOST_ATTEMPTS = 2


class UnitSchedule:
    """The examples of one radius on their way through a cascade. ``run`` yields records as they come.

    ``elsewhere`` tells whether somebody else has settled an index in the meantime; it is then left out.
    """

    def __init__(
        self, cascade: Cascade, executor: Executor, elsewhere: Callable[[int], bool] = lambda index: False
    ) -> None:
        self._cascade = cascade
        self._elsewhere = elsewhere
        self._executor = executor
        self._ready: list[tuple[int, float, int, Unit]] = []  # heap: cheap segments first, then what will take longest
        self._waiting: list[list[Example]] = [[] for _ in cascade.segments]
        self._under_way: list[int] = [0] * len(cascade.segments)
        self._numbers = itertools.count()

    def run(self, examples: Iterable[Example]) -> Iterator[list[Record]]:
        """Groups of records, as soon as they are settled."""
        for example in examples:
            self._wait(0, example)
        self._flush()
        while self._ready or any(self._under_way):
            while self._ready and self._executor.free > 0:
                unit = heapq.heappop(self._ready)[3].without(self._elsewhere)
                if unit.examples:
                    self._under_way[unit.segment] += 1
                    self._executor.submit(unit)
            if not any(self._under_way):
                self._flush()
                continue
            unit, answer = self._executor.next()
            self._under_way[unit.segment] -= 1
            records = self._failure(unit, answer) if answer.failure else self._success(unit, answer)
            self._flush()
            if records:
                yield records

    def _success(self, unit: Unit, answer: UnitAnswer) -> list[Record]:
        return [*answer.records, *self._onwards(unit.segment + 1, answer.open)]

    def _onwards(self, segment: int, examples: Iterable[Example]) -> list[Record]:
        """Send examples to a segment; records if there is none any more."""
        if segment >= len(self._cascade.segments):
            return [example.left_open() for example in examples]
        for example in examples:
            self._wait(segment, example)
        return []

    def _failure(self, unit: Unit, answer: UnitAnswer) -> list[Record]:
        """Once more, one by one; after a second failure without the stage that failed (all, if none is known)."""
        if unit.attempt + 1 < _MOST_ATTEMPTS:
            for part in unit.parts():
                self._push(part)
            return []
        names = [stage.name for stage in self._cascade.segments[unit.segment]]
        stage = answer.stage or "/".join(names[unit.skip :])
        examples = tuple(example.failed(stage, answer.failure) for example in unit.examples)
        behind = names.index(stage) + 1 if stage in names else len(names)
        if behind == len(names):
            return self._onwards(unit.segment + 1, examples)
        self._push(Unit(unit.segment, examples, skip=behind))
        return []

    def _wait(self, segment: int, example: Example) -> None:
        waiting = self._waiting[segment]
        waiting.append(example)
        if len(waiting) >= self._cascade.segments[segment][0].chunk:
            self._push(Unit(segment, tuple(waiting)))
            waiting.clear()

    def _flush(self) -> None:
        """Send partial groups on when nothing can join them any more."""
        for segment, waiting in enumerate(self._waiting):
            busy = any(self._under_way[:segment]) or (self._ready and self._ready[0][0] < segment)
            if waiting and not busy:
                self._push(Unit(segment, tuple(waiting)))
                waiting.clear()

    def _push(self, unit: Unit) -> None:
        heapq.heappush(self._ready, (unit.segment, -unit.hardness, next(self._numbers), unit))
