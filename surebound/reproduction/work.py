"""The three kinds of work an artefact may need, each with a stable name, so that what is done is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from fractions import Fraction
from typing import Any

from surebound.experiment.codec import encode
from surebound.experiment.config import Config
from surebound.train.methods import Method
from surebound.verify import Cascade


def science(config: Config) -> dict[str, Any]:
    """What decides a run's numbers: data, network, method and plan, but not its name, measurements or machine."""
    return {key: encode(getattr(config, key)) for key in ("data", "model", "method", "plan")}


def digest(config: Config) -> str:
    """A short name for `science`: of what differs from the defaults, so that a later option changes no name."""
    parts = {key: _distinct(getattr(config, key)) for key in ("data", "model", "method", "plan")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]


def _distinct(value: Any) -> Any:
    """Plain values of a dataclass without the fields that have their default."""
    if not is_dataclass(value) or isinstance(value, type):
        return encode(value)
    kept = {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != _default(f)}
    head = {"name": value.name} if isinstance(value, Method) else {}
    return head | {key: _distinct(item) for key, item in kept.items()}


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


@dataclass(frozen=True, eq=False)
class Training:
    """A network to be trained. `paper_images` is how many images the paper's schedule looks at, if it is there."""

    config: Config
    paper_images: int | None = None

    @property
    def name(self) -> str:
        """The run directory's name: readable, and different for whatever would train differently."""
        plan = self.config.plan
        return f"{self.config.name}-{plan.steps}x{plan.batch_size}-seed{plan.seed}-{digest(self.config)}"

    @property
    def images(self) -> int:
        """Training images looked at."""
        return self.config.plan.steps * self.config.plan.batch_size

    @property
    def schedule(self) -> str:
        """Steps × images per step, and what share of the paper's schedule that is if it is shorter."""
        plan = self.config.plan
        text = f"{plan.steps:,} × {plan.batch_size}"
        if self.paper_images is None or self.images >= self.paper_images:
            return text
        return f"{text} ({100 * self.images / self.paper_images:.2g} % of the paper's)"

    @property
    def full(self) -> bool:
        """Whether the schedule is the paper's."""
        return self.paper_images is not None and self.images >= self.paper_images


@dataclass(frozen=True)
class Packaged:
    """A network of the zoo."""

    name: str


Network = Training | Packaged


@dataclass(frozen=True, eq=False)
class Check:
    """Images of a network to be decided by a cascade."""

    network: Network
    radii: tuple[Fraction, ...]
    cascade: Cascade
    images: int | None = None  # from the first; None: all
    timeout: float = float("inf")

    @property
    def request(self) -> dict[str, Any]:
        """What makes two checks the same."""
        return {
            "radii": [str(radius) for radius in self.radii],
            "images": self.images,
            "stages": self.cascade.key,
            "timeout": str(self.timeout),
        }


@dataclass(frozen=True, eq=False)
class Compute:
    """Anything else, as plain values that are kept in a JSON file. The function gets the bench.

    `settings` are all that decides the values besides the code; another setting is another file.
    """

    name: str
    settings: tuple[object, ...]
    function: Callable[[Any], dict[str, Any]]
    seconds: float | None = None  # about, on two cores

    @property
    def key(self) -> str:
        """The file's stem."""
        return f"{self.name}-{hashlib.sha256(repr(self.settings).encode()).hexdigest()[:8]}"


@dataclass(frozen=True, eq=False)
class WorkPlan:
    """Everything an artefact needs, in the order it is done."""

    trainings: tuple[Training, ...] = ()
    checks: tuple[Check, ...] = ()
    computations: tuple[Compute, ...] = ()
    missing: tuple[str, ...] = ()  # what this version cannot do, in words
    fake: tuple[str, ...] = ()  # datasets to generate instead of the published ones
