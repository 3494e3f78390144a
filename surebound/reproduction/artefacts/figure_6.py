"""Figures 6 and 7: first-layer filters per training method, with a number for their sparsity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from surebound.errors import InputError
from surebound.report.figure import Figure
from surebound.report.table import Cell, Table
from surebound.reproduction.artefacts.base import Artefact, Drawn, notes_at, number, shortened, trained
from surebound.reproduction.artefacts.paper import DATA, METHODS
from surebound.reproduction.artefacts.results_table import scheduled
from surebound.reproduction.bench import Bench
from surebound.reproduction.scale import Scale, fakes, known
from surebound.reproduction.work import Training, WorkPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas
    from matplotlib.figure import SubFigure

RADII = {
    Scale.SMOKE: {("mnist", "nominal"): "", ("mnist", "ibp"): "0.1", ("cifar10", "ibp"): "2-255"},
    Scale.LAPTOP: {
        ("mnist", "nominal"): "", ("mnist", "ibp"): "0.1", ("mnist", "wong"): "0.1",
        ("mnist", "adversarial"): "0.2", ("cifar10", "ibp"): "2-255",
    },
    Scale.PAPER: {
        (data, method): "" if method == "nominal" else radius
        for data, radius in (("mnist", "0.1"), ("cifar10", "2-255"))
        for method in METHODS
    },
}  # fmt: skip
THRESHOLD = 0.01  # of the layer's largest weight: smaller ones count as zero


def _networks(scale: Scale) -> dict[tuple[str, str], Training]:
    found = {}
    for (data, method), radius in RADII[scale].items():
        if known(data, "small", method, radius):
            found[(data, method)] = scheduled(scale, data, "small", method, radius)
    return found


def plan(scale: Scale) -> WorkPlan:
    found = _networks(scale)
    missing = tuple(f"no preset {d}-small-{m} in this version" for d, m in RADII[scale] if (d, m) not in found)
    return WorkPlan(tuple(found.values()), missing=missing, fake=fakes(scale, *{data for data, _ in found}))


def first_filters(model: nn.Module) -> Tensor:
    """(F, C, H, W): of the first convolution; of a fully connected network the first rows as images."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            return layer.weight.detach()
        if isinstance(layer, nn.Linear):
            side = int(layer.in_features**0.5)
            return layer.weight.detach()[:16].reshape(-1, 1, side, side)
    raise InputError("the network has no convolution and no linear layer to show filters of")


def sparsity(filters: Tensor) -> float:
    """Share of weights below THRESHOLD of the largest."""
    return float((filters.abs() < THRESHOLD * filters.abs().max()).double().mean())


def hoyer(filters: Tensor) -> float:
    """Mean over filters of (sqrt(n) - |w|_1/|w|_2) / (sqrt(n) - 1): 0 is even, 1 is a single weight.

    >>> import torch
    >>> hoyer(torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]])), hoyer(torch.ones(1, 1, 2, 2))
    (1.0, 0.0)
    """
    flat = filters.flatten(1).double()
    n = flat.shape[1] ** 0.5
    norms = flat.norm(dim=1)
    ratio = flat.abs().sum(1) / norms.clamp(min=1e-30)
    return float(((n - ratio) / (n - 1))[norms > 0].mean())


def _row(canvas: SubFigure, title: str, filters: Tensor) -> None:
    shown = filters[:16]
    if shown.shape[1] == 3:
        shown = (shown / shown.abs().max() / 2 + 0.5).permute(0, 2, 3, 1)
    else:
        shown = shown.mean(1)
    limit = float(filters.abs().max())
    canvas.suptitle(title, x=0.01, ha="left", fontsize=9)
    for axes, image in zip(canvas.subplots(1, 16, squeeze=False)[0], shown, strict=False):
        axes.imshow(image.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes.set_xticks([])
        axes.set_yticks([])


def draw(bench: Bench, scale: Scale) -> Drawn:
    networks = _networks(scale)
    filters = {key: first_filters(bench.load(run).model) for key, run in networks.items()}
    titles = {
        (data, method): f"{DATA[data]}, {METHODS[method]} ({networks[(data, method)].schedule})"
        for data, method in networks
    }

    def paint(canvas: Canvas) -> None:
        grid = canvas.add_gridspec(len(filters), 1)
        for row, (key, weights) in enumerate(filters.items()):
            _row(canvas.add_subfigure(grid[row]), titles[key], weights)

    rows: list[tuple[Cell, ...]] = []
    numbers = []
    for (data, method), weights in filters.items():
        run, radius = networks[(data, method)], RADII[scale][(data, method)].replace("-", "/")
        share, even = 100 * sparsity(weights), hoyer(weights)
        rows.append((DATA[data], METHODS[method], radius or "–", run.schedule, f"{share:.1f} %", f"{even:.2f}"))
        numbers.append(number(bench, run, figure="figure-6", sparsity=share, hoyer=even))
    columns = ("data", "method", "ε train", "schedule", "weights near zero", "Hoyer sparsity")
    notes = notes_at(
        scale,
        f"Near zero: below {100 * THRESHOLD:.0f} % of the layer's largest weight. Hoyer: 0 is even, 1 a single weight. "
        "The paper shows pictures only.",
        shortened(list(networks.values())),
        *plan(scale).missing,
    )
    table = Table("figure-6", columns, tuple(rows), "First-layer filters", notes)
    figure = Figure(
        "figure-6", "First-layer filters of each network", paint, (9.0, 0.95 * len(filters) + 0.2),
        "Blue negative, red positive; three channels as colours around grey. The first sixteen filters.",
    )  # fmt: skip
    found = {(d, m): r[4] for (d, m), r in zip(filters, rows, strict=True)}
    headline = "Weights near zero on MNIST: " + ", ".join(
        f"{METHODS[m]} {share}" for (d, m), share in found.items() if d == "mnist"
    )
    return Drawn((table, trained(bench, networks.values())), (figure,), headline + ".", numbers=tuple(numbers))


ARTEFACT = Artefact("figure-6", "filters", "First-layer filters", plan, draw)
