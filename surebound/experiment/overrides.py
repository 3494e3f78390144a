"""Changes to a configuration from the command line, in the terms people think in."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

from surebound.errors import ConfigError, nearest
from surebound.experiment.config import Config
from surebound.experiment.presets import PAPER
from surebound.train.methods import METHODS, Method

#: Settings of a method that mean the same in every method that has them.
KEPT = {"alpha", "ramp_alpha", "size", "attack", "regulariser"}
#: Settings of the plan that are taken as they are.
PLANNED = ("accumulate", "sync_batch_norm", "eps_train", "norm", "warmup", "ramp", "learning_rate", "seed", "l1")
TRAIN_IMAGES = {recipe.data: recipe.train_images for recipe in PAPER.values()} | {"digits": 1_442}


@dataclass(frozen=True)
class Overrides:
    """What may be changed; None leaves the configuration's value."""

    method: str | None = None
    eps_train: Fraction | None = None
    norm: str | None = None
    eps_test: tuple[Fraction, ...] | None = None
    steps: int | None = None
    epochs: float | None = None
    batch_size: int | None = None
    accumulate: int | None = None
    sync_batch_norm: bool | None = None
    warmup: int | None = None
    ramp: int | None = None
    kappa_final: float | None = None
    learning_rate: float | None = None
    seed: int | None = None
    l1: float | None = None
    hold_out: int | None = None
    device: str | None = None
    threads: int | None = None
    checkpoint_seconds: float | None = None

    def __post_init__(self) -> None:
        for key in ("steps", "batch_size"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"{key} must be at least 1, got {value}")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise ConfigError(f"epochs must be more than 0, got {self.epochs}")

    def apply(self, config: Config) -> Config:
        """The changed configuration. A new length stretches warm-up, ramp and decays in proportion."""
        config = self._length(config)
        plan: dict[str, Any] = {key: getattr(self, key) for key in PLANNED if getattr(self, key) is not None}
        if self.kappa_final is not None:
            plan["kappa_final"] = self.kappa_final
            if config.plan.kappa_start == config.plan.kappa_final:  # a recipe with one kappa throughout
                plan["kappa_start"] = self.kappa_final
        run = {
            key: getattr(self, key)
            for key in ("device", "threads", "checkpoint_seconds")
            if getattr(self, key) is not None
        }
        held = config.data if self.hold_out is None else replace(config.data, hold_out=self.hold_out)
        evaluation = config.evaluation
        if self.eps_test is not None:
            evaluation = replace(evaluation, radii=self.eps_test)
        if self.norm is not None:
            evaluation = replace(evaluation, norm=self.norm)
        method = self._method(config.method)
        if not method.robust and self.eps_train is None:
            plan["eps_train"] = Fraction(0)
        return replace(
            config,
            data=held,
            method=method,
            plan=replace(config.plan, **plan),
            run=replace(config.run, **run),
            evaluation=evaluation,
        )

    def _method(self, before: Method) -> Method:
        """The method by its name, with the attack, regulariser, alpha and box of the one before, where it has such."""
        if self.method is None or self.method == before.name:
            return before
        if self.method not in METHODS:
            hint = nearest(self.method, METHODS)
            raise ConfigError(f"--method {self.method} is no training method{hint} Known: {', '.join(METHODS)}")
        kind = METHODS[self.method]
        kept = {f.name for f in fields(before)} & {f.name for f in fields(kind)} & KEPT
        return kind(**{name: getattr(before, name) for name in kept})

    def _length(self, config: Config) -> Config:
        if self.steps is not None and self.epochs is not None:
            raise ConfigError("--steps and --epochs were both given; use one of them")
        batch = self.batch_size or config.plan.batch_size
        if self.steps is None and self.epochs is None and self.batch_size is None:
            return config
        if self.steps is not None:
            steps = self.steps
        elif self.epochs is not None:
            steps = round(self.epochs * train_images(config) / batch)
        else:  # as many images as before
            steps = round(config.plan.steps * config.plan.batch_size / batch)
        plan = replace(config.plan.stretched(max(1, steps)), batch_size=batch)
        every = config.evaluation.every * plan.steps // config.plan.steps
        evaluation = replace(config.evaluation, every=max(1, every) if config.evaluation.every else 0)
        return replace(config, plan=plan, evaluation=evaluation)


def train_images(config: Config) -> int:
    """How many training images the configuration's dataset has."""
    try:
        return TRAIN_IMAGES[config.data.name]
    except KeyError:
        raise ConfigError(
            f"the size of the dataset {config.data.name!r} is not known beforehand: give --steps instead of --epochs"
        ) from None
