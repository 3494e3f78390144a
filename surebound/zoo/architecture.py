"""Networks by name, described completely by a few plain values, so that stored weights find their network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch import nn

from surebound import models
from surebound.errors import ConfigError, nearest


def fc500(
    in_shape: tuple[int, int, int] = (1, 28, 28),
    classes: int = 10,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    batch_norm: bool = False,
    width: int = 500,
) -> nn.Sequential:
    """Build fc 500, fc K: the network of Raghunathan et al. 2018, with one hidden layer."""
    layers: list[nn.Module] = [nn.Flatten()]
    if mean is not None and std is not None:
        layers.insert(0, models.Normalize(mean, std))
    layers += [nn.Linear(math.prod(in_shape), width), *([nn.BatchNorm1d(width)] if batch_norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, classes))


def digits(
    in_shape: tuple[int, int, int] = (1, 8, 8),
    classes: int = 10,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Build fc 100, fc 100, fc K: for the embedded 8x8 digits, too small for the paper's convolutions."""
    c, h, w = in_shape
    layers: list[nn.Module] = [nn.Flatten()]
    if mean is not None and std is not None:
        layers.insert(0, models.Normalize(mean, std))
    for inputs, outputs in ((c * h * w, 100), (100, 100)):
        layers += [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if batch_norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(100, classes))


NETS: dict[str, Callable[..., nn.Module]] = {
    "digits": digits,
    "fc100": partial(fc500, width=100),
    "fc500": fc500,
    "small": models.small,
    "medium": models.medium,
    "large": models.large,
    "cnn5": models.cnn5,
    "cnn5-half": partial(models.cnn5, width=32),
    "cnn7": models.cnn7,
    "wrn-10-10": models.wide_resnet_10_10,
}


@dataclass(frozen=True)
class Architecture:
    """A network without its weights.

    >>> len(Architecture("digits", (1, 8, 8), 10).build())
    6
    """

    name: str
    in_shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    batch_norm: bool = False

    def __post_init__(self) -> None:
        if self.name not in NETS:
            hint = nearest(self.name, NETS)
            raise ConfigError(f"model.name = {self.name!r} is no network{hint} Known: {', '.join(NETS)}")

    def build(self) -> nn.Module:
        """Build the network; its first weights come from PyTorch's global generator."""
        return NETS[self.name](self.in_shape, self.classes, self.mean, self.std, self.batch_norm)

    def record(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Architecture:
        """Read what `record` returned."""
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in record.items()}
        return cls(**values)
