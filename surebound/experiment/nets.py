"""The network a configuration describes."""

from __future__ import annotations

import torch
from torch import nn

from surebound.data.order import stream
from surebound.data.types import Dataset
from surebound.experiment.config import ModelConfig
from surebound.train.initialise import INITIALISERS
from surebound.zoo import Architecture


def architecture_of(config: ModelConfig, data: Dataset) -> Architecture:
    """The network for inputs and classes of `data`; normalisation is its first layer."""
    normalise = config.normalise and data.mean is not None
    return Architecture(
        name=config.name,
        in_shape=data.input_shape,
        classes=len(data.classes),
        mean=data.mean if normalise else None,
        std=data.std if normalise else None,
        batch_norm=config.batch_norm,
    )


def build_net(config: ModelConfig, data: Dataset, seed: int) -> nn.Module:
    """The network with its initial weights, which depend on `seed` alone."""
    with torch.random.fork_rng(devices=[]):  # modules draw their first weights from the global generator
        torch.manual_seed(seed)
        model = architecture_of(config, data).build()
    INITIALISERS[config.init](model, stream(seed, "init"))
    return model
