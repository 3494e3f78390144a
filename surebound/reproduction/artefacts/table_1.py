"""Table 1: the three networks, counted from the models themselves."""

from __future__ import annotations

from torch import nn

from surebound import models
from surebound.models.layers import hidden_count, parameter_count
from surebound.report.table import Cell, Table
from surebound.reproduction.artefacts.base import Artefact, Drawn
from surebound.reproduction.artefacts.paper import ARCHITECTURES
from surebound.reproduction.bench import Bench
from surebound.reproduction.scale import Scale
from surebound.reproduction.work import WorkPlan

CIFAR = (3, 32, 32)


def describe(model: nn.Module) -> str:
    """`CONV 16 4x4+2, ...` as the paper writes it, without the last layer."""
    parts = []
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            height, width = layer.kernel_size
            parts.append(f"CONV {layer.out_channels} {height}×{width}+{layer.stride[0]}")
        elif isinstance(layer, nn.Linear):
            parts.append(f"FC {layer.out_features}")
    return ", ".join(parts[:-1])


def draw(bench: Bench, scale: Scale) -> Drawn:
    rows: list[tuple[Cell, ...]] = []
    for name, (hidden, parameters) in ARCHITECTURES.items():
        model = {"small": models.small, "medium": models.medium, "large": models.large}[name](CIFAR)
        ours = hidden_count(model, CIFAR), parameter_count(model)
        rows.append((name, describe(model), f"{ours[0]:,}", hidden, f"{ours[1]:,}", parameters))
    columns = ("network", "layers", "hidden units", "paper", "parameters", "paper ")
    table = Table(
        "table-1", columns, tuple(rows), "Networks on CIFAR-10 inputs; every layer is followed by a ReLU",
        ("“paper” is what the paper prints, rounded. The last fully connected layer is counted, not listed.",),
    )  # fmt: skip
    return Drawn((table,), headline="All three networks have the paper's numbers of units and parameters.")


ARTEFACT = Artefact("table-1", "architectures", "The networks", lambda scale: WorkPlan(), draw)
