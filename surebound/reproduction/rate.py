"""How long trainings and verifications take: from what is there already, else by a trial or from experience."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import fmean, median

import torch

from surebound.data.source import SOURCES
from surebound.experiment.config import Config
from surebound.experiment.metrics import read_metrics
from surebound.reproduction.bench import Bench
from surebound.reproduction.work import Check, Training, science
from surebound.train.examples import TensorExamples
from surebound.train.initialise import INITIALISERS
from surebound.train.loop import Loop
from surebound.train.task import Task
from surebound.verify.run import STORE_NAME
from surebound.verify.store import Store
from surebound.zoo import Architecture

TRIAL_IMAGES = 3200  # at most, of a trial
TRIAL_SECONDS = 2.0
#: Seconds of one core for an image and a radius, by cascade, on the paper's small network. Mostly the attack.
TYPICAL = {
    "bounded": 0.005,
    "curve": 0.05,
    "curve-wong": 0.1,
    "attacked": 0.2,
    "laptop": 0.2,
    "laptop-wong": 0.2,
}


@dataclass(eq=False)
class Speeds:
    """How fast training and verification go, by network, data and method; each is found once."""

    bench: Bench
    _known: dict[str, float] = field(default_factory=dict)
    _checks: dict[str, float | None] = field(default_factory=dict)

    def seconds(self, training: Training) -> float:
        """How long a training will take."""
        return training.images / self.images_per_second(training.config)

    def check_seconds(self, check: Check) -> float | None:
        """How long a verification will take: as others with its cascade did, here or on the packaged networks."""
        name = check.cascade.name
        if name not in self._checks:
            self._checks[name] = self._from_stores(name)
        each = self._checks[name]
        if each is None or check.images is None:
            return None
        return each * check.images * len(check.radii) / (self.bench.jobs or 1)

    def _from_stores(self, cascade: str) -> float | None:
        """Seconds per image and radius in the verifications of this cascade that are there."""
        seconds: list[float] = []
        for path in sorted((self.bench.out / "verified").glob(f"*/{cascade}/{STORE_NAME}")):
            with Store.read(path) as store:
                seconds += [sum(s for _, s in record.stage_seconds) for record in store.records()]
        return fmean(seconds) if seconds else TYPICAL.get(cascade)

    def images_per_second(self, config: Config) -> float:
        """Measured on this machine, now or by an earlier run in the output directory."""
        key = _kind(config)
        if not self._known:
            self._known.update(self._from_runs())
        if key not in self._known:
            self._known[key] = trial(config)
        return self._known[key]

    def _from_runs(self) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for path in sorted((self.bench.out / "runs").glob("*/metrics.jsonl")):
            config = Config.read(path.parent / "config.toml")
            rates = [m["samples_per_second"] for m in read_metrics(path) if m.get("samples_per_second")]
            if rates:
                found.setdefault(_kind(config), []).append(median(rates))
        return {key: median(rates) for key, rates in found.items()}


def _kind(config: Config) -> str:
    parts = science(config)
    return json.dumps([parts["data"], parts["model"], parts["method"]], sort_keys=True)


def trial(config: Config, seconds: float = TRIAL_SECONDS) -> float:
    """Images per second of a few steps on random images, at the full radius; the first step is not counted."""
    shape, classes, mean, std = _shape(config.data.name)
    model = Architecture(
        config.model.name,
        shape,
        classes,
        mean if config.model.normalise else None,
        std if config.model.normalise else None,
        config.model.batch_norm,
    ).build()
    generator = torch.Generator().manual_seed(0)
    INITIALISERS[config.model.init](model, generator)
    batch = min(config.plan.batch_size, 32)
    images = torch.rand((batch, *shape), generator=generator)
    labels = torch.randint(classes, (batch,), generator=generator)
    eps = config.plan.eps_train or Fraction(0)
    plan = replace(
        config.plan, steps=1000, batch_size=batch, warmup=0, ramp=0, decay_steps=(), eps_train=eps,
        kappa_start=config.plan.kappa_final,
    )  # fmt: skip
    loop = Loop(Task(model, TensorExamples(images, labels), config.method, plan))
    loop.prepare()
    loop.advance()
    began, steps = time.monotonic(), 0
    while steps == 0 or (time.monotonic() - began < seconds and steps * batch < TRIAL_IMAGES):
        loop.advance()
        steps += 1
    return steps * batch / (time.monotonic() - began)


def _shape(name: str) -> tuple[tuple[int, int, int], int, tuple[float, ...] | None, tuple[float, ...] | None]:
    if name not in SOURCES:  # the embedded digits
        return (1, 8, 8), 10, None, None
    source = SOURCES[name]
    return source.test_shape, len(source.classes), source.mean, source.std
