"""Networks by the name a configuration uses."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import nn

from surebound.data.order import stream
from surebound.data.types import Dataset
from surebound.errors import ConfigError
from surebound.experiment.codec import nearest
from surebound.experiment.config import ModelConfig
from surebound.train.initialise import INITIALISERS


def digits_net(
    in_shape: tuple[int, int, int] = (1, 8, 8),
    classes: int = 10,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    batch_norm: bool = False,
) -> nn.Module:
    """A small fully connected network for the embedded 8x8 digits: two hidden layers of 100 units."""
    c, h, w = in_shape
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in ((c * h * w, 100), (100, 100)):
        layers += [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if batch_norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(100, classes))


NETS = {
    "digits": "surebound.experiment.nets:digits_net",
    "small": "surebound.models:small",
    "medium": "surebound.models:medium",
    "large": "surebound.models:large",
    "cnn7": "surebound.models:cnn7",
    "wrn-10-10": "surebound.models:wide_resnet_10_10",
}


def build_net(config: ModelConfig, data: Dataset, seed: int) -> nn.Module:
    """The network a configuration describes, for `data`, with its initial weights drawn from `seed` alone."""
    if config.name not in NETS:
        raise ConfigError(f"model.name = {config.name!r} is no network{nearest(config.name, NETS)} Known: {', '.join(NETS)}")
    normalise = config.normalise and data.mean is not None
    with torch.random.fork_rng(devices=[]):  # modules draw their first weights from the global generator
        torch.manual_seed(seed)
        model = _factory(config.name)(
            in_shape=data.input_shape,
            classes=len(data.classes),
            mean=data.mean if normalise else None,
            std=data.std if normalise else None,
            batch_norm=config.batch_norm,
        )
    INITIALISERS[config.init](model, stream(seed, "init"))
    return model


def _factory(name: str) -> Callable[..., nn.Module]:
    module, _, attribute = NETS[name].partition(":")
    factory: Callable[..., nn.Module] = getattr(importlib.import_module(module), attribute)
    return factory
