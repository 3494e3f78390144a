"""Values that change with the training step: radius, loss weight, learning rate.

A schedule is a frozen description with one method, `at(step)`; nothing is advanced, so that a resumed run reads
the same values from its step alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from surebound.errors import ConfigError


class Schedule(Protocol):
    """A number for every training step, counted from 0."""

    def at(self, step: int) -> float:
        """Return the value used by step `step`."""
        ...


class RampShape(Protocol):
    """An increasing map of [0, 1] onto [0, 1]: how a ramp gets from one end to the other."""

    def __call__(self, u: float) -> float: ...


@dataclass(frozen=True)
class Linear:
    """u -> u, the paper's ramp."""

    def __call__(self, u: float) -> float:
        return u


@dataclass(frozen=True)
class Smooth:
    """A power up to `bend`, then a straight line, with equal slopes where they meet.

    The curve is a·u^p below m and a·m^p + a·p·m^(p-1)·(u - m) above; reaching 1 at u = 1 fixes a.

    >>> shape = Smooth()
    >>> shape(0.0), shape(1.0)
    (0.0, 1.0)
    """

    power: float = 4.0
    bend: float = 0.25

    def __post_init__(self) -> None:
        if not (self.power >= 1.0 and 0.0 < self.bend <= 1.0):
            raise ConfigError(
                f"a smooth ramp needs power >= 1 and 0 < bend <= 1, got power={self.power} and bend={self.bend}"
            )

    def __call__(self, u: float) -> float:
        p, m = self.power, self.bend
        a = 1.0 / (m ** (p - 1.0) * (m + p * (1.0 - m)))
        if u < m:
            return float(a * u**p)
        return float(1.0 - a * p * m ** (p - 1.0) * (1.0 - u))


SHAPES: dict[str, RampShape] = {"linear": Linear(), "smooth": Smooth()}


@dataclass(frozen=True)
class Constant:
    """The same value at every step."""

    value: float

    def at(self, step: int) -> float:
        """Return the value."""
        return self.value


@dataclass(frozen=True)
class Ramp:
    """`start` up to step `begin`, then to `end` over `length` steps, then `end`.

    >>> Ramp(start=1.0, end=0.5, begin=2000, length=10000).at(7000)
    0.75
    """

    start: float
    end: float
    begin: int
    length: int
    shape: RampShape = Linear()

    def __post_init__(self) -> None:
        if self.begin < 0 or self.length < 0:
            raise ConfigError(f"a ramp cannot begin at step {self.begin} and last {self.length} steps: use 0 or more")

    def at(self, step: int) -> float:
        """Return the ramp's value at `step`."""
        if step >= self.begin + self.length:
            return self.end
        if step <= self.begin:
            return self.start
        return self.start + (self.end - self.start) * self.shape((step - self.begin) / self.length)


@dataclass(frozen=True)
class Staircase:
    """`initial`, multiplied by `factor` from each of the steps `at_steps` on.

    >>> [round(Staircase(1e-3, (15_000, 25_000)).at(s), 8) for s in (14_999, 15_000, 25_000)]
    [0.001, 0.0001, 1e-05]
    """

    initial: float
    at_steps: tuple[int, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        if list(self.at_steps) != sorted(set(self.at_steps)):
            raise ConfigError(f"the steps of a decay must increase, got {list(self.at_steps)}")

    def at(self, step: int) -> float:
        """Return the rate at `step`."""
        return self.initial * self.factor ** sum(step >= s for s in self.at_steps)


@dataclass(frozen=True)
class Triangle:
    """From about 0 to `peak` over the share `rise` of the `steps`, and back to about 0 at their end (Smith 2017).

    >>> [round(Triangle(1.0, 100).at(s), 3) for s in (0, 29, 30, 99)]
    [0.017, 0.983, 0.993, 0.007]
    """

    peak: float
    steps: int
    rise: float = 0.3

    def at(self, step: int) -> float:
        """Return the rate at `step`, in the middle of it: never 0."""
        done = (step + 0.5) / self.steps
        return self.peak * min(done / self.rise, (1.0 - done) / (1.0 - self.rise))
