"""What a training loop tells the outside: numbers now and then, evaluations, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from surebound.train.evaluate import Errors


@dataclass(frozen=True)
class Progress:
    """Means over the last steps."""

    step: int  # steps done
    steps: int  # of the whole run
    scalars: dict[str, float]  # loss and what the method reports
    epsilon: float
    kappa: float
    rate: float
    samples_per_second: float
    seconds_left: float

    def record(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "step": self.step,
            **self.scalars,
            "epsilon": self.epsilon,
            "kappa": self.kappa,
            "learning_rate": self.rate,
            "samples_per_second": round(self.samples_per_second, 1),
        }


class Observer:
    """Receives what a loop has to say; every method does nothing unless overridden."""

    def started(self, step: int, steps: int) -> None:
        """Training is about to take step `step` of `steps`."""

    def progressed(self, progress: Progress) -> None:
        """Hear that some steps were done."""

    def evaluated(self, step: int, errors: Errors) -> None:
        """Hear what was measured on held-out data after `step` steps."""

    def saved(self, step: int, path: Path) -> None:
        """Hear that a checkpoint was written."""


@dataclass(frozen=True)
class Observers(Observer):
    """Several observers as one."""

    members: tuple[Observer, ...]

    def started(self, step: int, steps: int) -> None:
        for member in self.members:
            member.started(step, steps)

    def progressed(self, progress: Progress) -> None:
        for member in self.members:
            member.progressed(progress)

    def evaluated(self, step: int, errors: Errors) -> None:
        for member in self.members:
            member.evaluated(step, errors)

    def saved(self, step: int, path: Path) -> None:
        for member in self.members:
            member.saved(step, path)
