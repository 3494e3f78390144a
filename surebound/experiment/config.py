"""The configuration of a training run: typed, frozen, and equal to its TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from surebound.errors import ConfigError
from surebound.experiment.codec import decode, encode
from surebound.train.evaluate import Evaluation
from surebound.train.initialise import INITIALISERS
from surebound.train.methods import Method
from surebound.train.methods.base import check_norm
from surebound.train.plan import Plan

OWN = "own"
"""The name of data and networks that were given in Python."""


@dataclass(frozen=True)
class DataConfig:
    """Which data, whether the dataset's augmentation is applied in training, where inputs end, what is held out."""

    name: str = "digits"  # OWN: tensors that were given in Python, kept in the run directory
    augment: bool = True
    clip: tuple[float, ...] = (0.0, 1.0)  # valid inputs, from and to; empty: all numbers
    hold_out: int = 0  # training images that are measured instead of the test images: for choices between recipes

    def __post_init__(self) -> None:
        if self.hold_out < 0 or (self.hold_out and self.name == OWN):
            raise ConfigError(f"hold_out must be 0 or a number of a named dataset's images, got {self.hold_out}")
        if len(self.clip) not in (0, 2) or list(self.clip) != sorted(self.clip):
            raise ConfigError(f"clip must be empty or two numbers, the lower first, got {list(self.clip)}")

    @property
    def clip_range(self) -> tuple[float, float] | None:
        """The clip range as regions take it."""
        return (self.clip[0], self.clip[1]) if self.clip else None


@dataclass(frozen=True)
class ModelConfig:
    """Which network, and how its weights are drawn."""

    name: str = "small"
    batch_norm: bool = False
    normalise: bool = True  # a first layer with the dataset's channel statistics, if it has any
    init: str = "orthogonal"

    def __post_init__(self) -> None:
        if self.init not in INITIALISERS:
            raise ConfigError(f"init must be one of {', '.join(INITIALISERS)}, got {self.init!r}")


@dataclass(frozen=True)
class RunConfig:
    """How a run behaves towards the machine; only `threads` may change what is computed, in the last bit."""

    device: str = "cpu"
    threads: int | None = None  # None: chosen by a trial
    checkpoint_seconds: float = 60.0
    keep: int = 2  # checkpoints besides the best
    log_every: int = 100

    def __post_init__(self) -> None:
        for key, least in (("threads", 1), ("checkpoint_seconds", 0), ("keep", 1), ("log_every", 1)):
            value = getattr(self, key)
            if value is not None and not value >= least:
                raise ConfigError(f"{key} must be at least {least}, got {value}")


@dataclass(frozen=True)
class Config:
    """Everything a training run is made of."""

    name: str
    data: DataConfig
    model: ModelConfig
    method: Method
    plan: Plan
    evaluation: Evaluation = field(default_factory=Evaluation)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        check_norm(self.method, self.plan.norm)
        if self.method.robust and self.plan.eps_train == 0:
            raise ConfigError(
                f"plan.eps_train is 0, but the method {self.method.name!r} trains against perturbations: "
                "set eps_train, or use the method 'nominal'"
            )
        if not self.method.robust and self.plan.eps_train > 0:
            raise ConfigError(
                f"plan.eps_train is {self.plan.eps_train}, but the method {self.method.name!r} has no use for a "
                "radius: set it to 0, or choose a method that trains against perturbations"
            )

    def to_toml(self) -> str:
        """The TOML text that `from_toml` reads back to an equal configuration."""
        return tomli_w.dumps(encode(self))

    @classmethod
    def from_toml(cls, text: str) -> Config:
        """Read a configuration; unknown keys and contradictions are errors that name the key."""
        try:
            table: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"not a TOML text: {error}") from error
        config: Config = decode(cls, table)
        return config

    @classmethod
    def read(cls, path: Path) -> Config:
        """Read a configuration file."""
        try:
            return cls.from_toml(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the configuration {path}: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def with_plan(self, **changes: Any) -> Config:
        """The configuration with some entries of its plan replaced."""
        return replace(self, plan=replace(self.plan, **changes))
