"""Initial weights, drawn from an explicit generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import nn

Initialiser = Callable[[nn.Module, torch.Generator], None]


def affine_layers(model: nn.Module) -> Iterator[nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d]:
    """List every linear and convolutional layer, in the order of registration."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            yield module


def orthogonal(model: nn.Module, generator: torch.Generator) -> None:
    """Orthogonal weights of gain 1 and zero biases: what the paper's authors use."""
    for layer in affine_layers(model):
        nn.init.orthogonal_(layer.weight, generator=generator)
        _zero_bias(layer)


def ibp_normal(model: nn.Module, generator: torch.Generator) -> None:
    """Normal weights of deviation sqrt(2 pi) / fan-in and zero biases.

    With E|w| = 2 / fan-in, and half of the radius passing a ReLU, the mean radius keeps its size from layer to
    layer (Shi et al. 2021, section 4.1).
    """
    for layer in affine_layers(model):
        fan_in = layer.weight[0].numel()
        nn.init.normal_(layer.weight, std=math.sqrt(2.0 * math.pi) / fan_in, generator=generator)
        _zero_bias(layer)


def keep(model: nn.Module, generator: torch.Generator) -> None:
    """Leave the weights as the modules drew them."""


def _zero_bias(layer: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


INITIALISERS: dict[str, Initialiser] = {"orthogonal": orthogonal, "ibp_normal": ibp_normal, "keep": keep}
