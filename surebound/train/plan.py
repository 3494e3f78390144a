"""What a training run does, in numbers: its length, curriculum and optimiser. All durations are in steps."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Self

from surebound.errors import ConfigError, nearest
from surebound.numerics import exact_fraction
from surebound.region import BALLS
from surebound.train.average import Averaging
from surebound.train.optimise import OPTIMISERS
from surebound.train.schedules import SHAPES, Constant, Ramp, Schedule, Staircase, Triangle


@dataclass(frozen=True)
class Plan:
    """A training run, apart from network, data and method. The defaults are the paper's for MNIST.

    Radius and kappa stay at their start for `warmup` steps and go to their final values over the next `ramp`
    steps. The radius may be given as a string, a fraction or a number; it is kept exactly. `l1` weighs the sum of the
    absolute weights of linear and convolutional layers, whose gradient is added to the loss's. With `averaging`, what
    is measured and what a finished run leaves is an average of the weights along it. `accumulate` takes the batch of a
    step in so many parts, one after the other, in the memory of one: the same gradients to rounding, but that BatchNorm
    and the regulariser see a part at a time (train/parts.py). With `sync_batch_norm` BatchNorm sees the whole batch of
    several processes, not each process's share of it (train/synchronise.py).

    >>> plan = Plan(steps=60_000, eps_train="0.4", warmup=2_000, ramp=10_000)
    >>> plan.epsilon.at(7_000), plan.kappa.at(7_000)
    (0.2, 0.75)
    """

    steps: int
    batch_size: int = 100
    eps_train: Fraction = Fraction(0)
    warmup: int = 0
    ramp: int = 0
    shape: str = "linear"
    kappa_start: float = 1.0
    kappa_final: float = 0.5
    learning_rate: float = 1e-3
    decay_steps: tuple[int, ...] = ()
    decay_factor: float = 0.1
    weight_decay: float = 0.0
    l1: float = 0.0
    clip_norm: float | None = None
    seed: int = 0
    eps_start: Fraction = Fraction(0)  # where the radius starts
    optimiser: str = "adam"
    averaging: Averaging | None = None
    accumulate: int = 1  # parts of a batch
    sync_batch_norm: bool = False  # statistics of the whole batch, over all processes
    norm: str = "linf"  # of the balls of radius eps_train: linf, l2 or l1
    cycle: bool = False  # one cycle of the rate, up to learning_rate and down again, instead of decays

    def __new__(cls, *args: object, **given: object) -> Self:
        """Refuse unknown names in our own words, before the dataclass does in Python's."""
        if "epochs" in given:
            raise ConfigError(
                "a Plan counts in steps; give the length in epochs to the training: sb.train(..., epochs="
                f"{given['epochs']}) stretches a plan, and so does `surebound train --epochs`"
            )
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(f"a Plan has no {name!r}{nearest(name, known)} It has: {', '.join(known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps_train", exact_fraction(self.eps_train))
        object.__setattr__(self, "eps_start", exact_fraction(self.eps_start))
        object.__setattr__(self, "decay_steps", tuple(self.decay_steps))
        for key in ("steps", "batch_size", "accumulate"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} must be at least 1, got {getattr(self, key)}")
        if self.accumulate > self.batch_size:
            raise ConfigError(
                f"accumulate = {self.accumulate} parts of a batch of {self.batch_size}: give at most one per example"
            )
        if self.norm not in BALLS:
            raise ConfigError(f"norm = {self.norm!r}{nearest(self.norm, BALLS)}; give one of {', '.join(BALLS)}")
        for key in ("eps_train", "eps_start", "warmup", "ramp", "weight_decay", "l1"):
            if not getattr(self, key) >= 0:
                raise ConfigError(f"{key} must be 0 or more, got {getattr(self, key)}")
        for key in ("kappa_start", "kappa_final"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(f"{key} must be between 0 and 1, got {getattr(self, key)}")
        for key in ("learning_rate", "decay_factor", "clip_norm"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ConfigError(f"{key} must be positive, got {value}")
        if self.shape not in SHAPES:
            raise ConfigError(f"shape must be one of {', '.join(SHAPES)}, got {self.shape!r}")
        if self.optimiser not in OPTIMISERS:
            raise ConfigError(f"optimiser must be one of {', '.join(OPTIMISERS)}, got {self.optimiser!r}")
        if self.averaging is not None and self.averaging.start >= self.steps:
            raise ConfigError(
                f"averaging starts at step {self.averaging.start}, but the run has steps = {self.steps}: start earlier"
            )
        if self.warmup + self.ramp > self.steps:
            raise ConfigError(
                f"warmup + ramp = {self.warmup} + {self.ramp} steps exceed the run's steps = {self.steps}: "
                "the radius would never reach eps_train. Shorten them or raise steps"
            )
        if self.cycle and self.decay_steps:
            raise ConfigError(f"cycle and decay_steps = {list(self.decay_steps)} were both given; use one of them")
        if self.decay_steps != tuple(sorted(set(self.decay_steps))):
            raise ConfigError(f"decay_steps must increase, got {list(self.decay_steps)}")

    @property
    def epsilon(self) -> Schedule:
        """The radius of each step."""
        start = min(self.eps_start, self.eps_train)
        return Ramp(float(start), float(self.eps_train), self.warmup, self.ramp, SHAPES[self.shape])

    @property
    def kappa(self) -> Schedule:
        """The weight of the clean loss at each step."""
        if self.kappa_start == self.kappa_final:
            return Constant(self.kappa_final)
        return Ramp(self.kappa_start, self.kappa_final, self.warmup, self.ramp)

    @property
    def rate(self) -> Schedule:
        """The learning rate of each step."""
        if self.cycle:
            return Triangle(self.learning_rate, self.steps)
        return Staircase(self.learning_rate, self.decay_steps, self.decay_factor)

    def stretched(self, steps: int) -> Plan:
        """Stretch the recipe to `steps` steps: warm-up, ramp, decays and averaging keep their share of the run."""

        def scale(duration: int) -> int:
            return duration * steps // self.steps

        decays = sorted({scale(s) for s in self.decay_steps})
        average = self.averaging and replace(self.averaging, start=scale(self.averaging.start))
        return replace(
            self,
            steps=steps,
            warmup=scale(self.warmup),
            ramp=scale(self.ramp),
            decay_steps=tuple(decays),
            averaging=average,
        )
