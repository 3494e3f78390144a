"""The network a configuration describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from surebound.data.order import stream
from surebound.data.types import Dataset
from surebound.errors import RunError
from surebound.experiment.config import ModelConfig
from surebound.train.initialise import INITIALISERS
from surebound.zoo import Architecture, layers


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


def recorded_net(record: Mapping[str, Any], run: Path) -> nn.Module:
    """Build the network that a run's record of its architecture describes, with weights still to be filled in."""
    if "layers" in record:
        return layers.build(record)
    if "factory" in record:
        from surebound.experiment.target import build_factory

        return build_factory(str(record["factory"]))
    if "own" in record:
        module, _, name = str(record["own"]).partition(":")
        raise RunError(
            f"the network of {run} is the class {name} of {module}, which this program cannot build: give a factory "
            f"and the run's weights (MODULE:{name} --weights {run / 'final.safetensors'}), or go on where it was made: "
            "sb.train(net, ..., out=...)"
        )
    return Architecture.of_record(record).build()


def build_net(config: ModelConfig, data: Dataset, seed: int) -> nn.Module:
    """The network with its initial weights, which depend on `seed` alone."""
    with torch.random.fork_rng(devices=[]):  # modules draw their first weights from the global generator
        torch.manual_seed(seed)
        model = architecture_of(config, data).build()
    INITIALISERS[config.init](model, stream(seed, "init"))
    return model
