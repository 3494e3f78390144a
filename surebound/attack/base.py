"""The base of every attack: it owns the search, an attack writes only how it begins and how it steps."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import final

import torch
from torch import Tensor

from surebound.attack.objective import LOSSES
from surebound.attack.options import check_type, is_count, pick
from surebound.attack.result import AttackProgress, Ledger
from surebound.attack.rows import AttackProblem, AttackRows
from surebound.attack.starts import STARTS
from surebound.attack.steps import StepDecay, StepRule
from surebound.errors import ConfigError

Progress = Callable[[AttackProgress], None]
Stop = Callable[[], bool]

#: Options that several attacks have, checked for all of them: by the names there are, or by type.
NAMED: Mapping[str, Mapping[str, object]] = {"loss": LOSSES, "start": STARTS}
TYPED: Mapping[str, type] = {"rule": StepRule, "decay": StepDecay}


@dataclass(frozen=True)
class Attack(abc.ABC):
    """A way of looking for a violation inside a box.

    To write one: a frozen dataclass with ``begin`` (where the rows start) and ``step`` (where they go next).
    Projection into the box, remembering the worst iterate, dropping what has fallen, restarts and memory are
    not its business, and it cannot get them wrong: ``__call__`` is final.

    >>> @dataclass(frozen=True)
    ... class Drift(Attack):
    ...     def begin(self, rows): rows.x = rows.lower
    ...     def step(self, rows, t):
    ...         rows.look()
    ...         return rows.x + rows.half_width / 10
    >>> Drift(steps=20, restarts=1).trials(choices=9)
    1
    """

    steps: int = 200
    restarts: int = 10

    def __post_init__(self) -> None:
        for name in ("steps", "restarts"):
            value = getattr(self, name)
            if not is_count(value):
                raise ConfigError(f"{type(self).__name__}({name}={value!r}): {name} must be an integer of at least 1")
        for option in fields(self):
            if option.name in NAMED:
                pick(NAMED[option.name], getattr(self, option.name), option.name)
            elif option.name in TYPED:
                check_type(self, option.name, TYPED[option.name])

    @abc.abstractmethod
    def begin(self, rows: AttackRows) -> None:
        """Set ``rows.x`` to the start, anywhere in the box, and fill ``rows.state``."""

    @abc.abstractmethod
    def step(self, rows: AttackRows, t: int) -> Tensor:
        """Return the next iterates (R, ...), in the box or not; must look at ``rows.x``, by gradient or without."""

    def trials(self, choices: int) -> int:
        """Count the independent searches per example, if ``choices`` rows of the specification can be violated."""
        return self.restarts

    @final
    def __call__(
        self,
        problem: AttackProblem,
        ledger: Ledger,
        examples: Tensor,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> None:
        """Search for violations of some examples (N,), and enter what is found into the ledger.

        ``stop`` is asked after every step; once it says so, the search ends with what it has.
        """
        total = len(examples) * ledger.trials * self.steps
        for chunk in _chunks(examples, ledger, problem.chunk):
            rows = AttackRows(problem, ledger, chunk.example, chunk.trial)
            self.begin(rows)
            rows.place(rows.x)
            for t in range(self.steps):
                rows.move(self.step(rows, t))
                rows.drop_ended()
                if progress is not None:
                    left = chunk.pending * self.steps + rows.live * (self.steps - t - 1)
                    fell = int(ledger.fallen[examples].sum())
                    progress(AttackProgress(total - left, total, len(examples), fell))
                if rows.live == 0:
                    break
                if stop is not None and stop():
                    rows.finish()
                    return
            else:
                rows.look()
            rows.finish()
            ledger.finished[chunk.example, chunk.trial] = True


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Rows that are searched together."""

    example: Tensor  # (R,)
    trial: Tensor  # (R,)
    pending: int  # rows that wait for a later chunk, if nothing falls in this one


def _chunks(examples: Tensor, ledger: Ledger, size: int) -> Iterator[_Chunk]:
    """Yield all trials of the examples (N,), at most ``size`` at once, earlier trials first, the fallen skipped.

    A chunk holds trial 0, or 1-2, or 3-6, ...: a single example is searched more in parallel the harder it
    proves, and one that falls at once costs no trials that it did not need.
    """
    first = 0
    while first < ledger.trials:
        last = min(2 * first + 1, ledger.trials)
        examples = examples[~ledger.fallen[examples]]
        example = examples.repeat(last - first)
        trial = torch.arange(first, last, device=examples.device).repeat_interleave(len(examples))
        while len(example):
            later = int((~ledger.fallen[examples]).sum()) * (ledger.trials - last)
            yield _Chunk(example[:size], trial[:size], max(0, len(example) - size) + later)
            example, trial = example[size:], trial[size:]
            needed = trial < ledger.winner[example]
            example, trial = example[needed], trial[needed]
        first = last
