"""Pictures for lectures: counterexamples, what a network does to one image's box, ranges of outputs, first weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from surebound.bounds.linear.intermediate import relax
from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.region import LinfBall
from surebound.report.figure import INK, MUTED, OPEN, PROVED, SERIES, Figure
from surebound.report.gallery import Picture, difference_pixels, image_pixels
from surebound.report.verdicts import radius_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MOST_UNITS = 120  # of a layer that are drawn
MOST_FILTERS = 32


def counterexamples(name: str, pictures: Sequence[Picture], most: int = 6) -> Figure | None:
    """Images, what they were changed to and the change, one below the other; None if there is none to show."""
    shown = [picture for picture in pictures if picture.original is not None and picture.witness is not None][:most]
    if not shown:
        return None

    def draw(canvas: Canvas) -> None:
        grid = canvas.subplots(len(shown), 3, squeeze=False)
        for row, picture in zip(grid, shown, strict=True):
            panels = picture.original, picture.witness, picture.perturbation
            for axes, panel, first in zip(row, panels, (True, True, False), strict=True):
                if panel is not None:
                    axes.imshow(image_pixels(panel) if first else difference_pixels(panel, picture.eps))
                axes.set_axis_off()
            within = picture.within or f"within {picture.eps:.3g}"
            row[0].set_title(f"{picture.title}, {within}", fontsize=8, loc="left")

    alt = "Counterexamples: the image, what it was changed to, and the change (red brighter, blue darker)"
    return Figure(name, alt, draw, (4.2, 1.45 * len(shown)))


def propagation(model: nn.Module, region: LinfBall) -> Figure | None:
    """The bounds before every ReLU over the ball of one image; None where linear bounds do not exist."""
    program = program_of(model, region.x)
    try:
        with torch.no_grad():
            root = relax(program, region.interval(Soundness.DEPLOYED), Soundness.DEPLOYED, own=False)
    except (BoundError, UnsupportedOperatorError):
        return None
    calls = program.graph.calls(lambda node: node.name in root.activations)
    before = [call.args[0].name for call in calls]
    layers = [root.bounds[source] for source in before if isinstance(root.bounds.get(source), Interval)]
    if not layers:
        return None

    def draw(canvas: Canvas) -> None:
        grid = canvas.subplots(len(layers), 1, squeeze=False)
        for number, (axes, box) in enumerate(zip(grid[:, 0], layers, strict=True), start=1):
            _units(axes, box, number)
        grid[-1, 0].set_xlabel(f"units, by their lower bound; every pixel ± {radius_text(region.eps)}")

    alt = "Bounds of the inputs of every layer of ReLUs: always positive, always negative, or of either sign"
    return Figure("propagation", alt, draw, (6.2, 0.4 + 1.5 * len(layers)))


def _units(axes: Axes, box: Interval, number: int) -> None:
    """Bars from the lower to the upper bound; a ReLU whose bar crosses 0 is what makes a proof hard."""
    lower, upper = box.lower[0].flatten(), box.upper[0].flatten()
    order = lower.argsort()
    some = order[torch.linspace(0, len(order) - 1, min(MOST_UNITS, len(order))).long()]
    low, high = lower[some], upper[some]
    colours = [PROVED if lo >= 0 else MUTED if up <= 0 else OPEN for lo, up in zip(low, high, strict=True)]
    axes.bar(range(len(some)), (high - low).tolist(), bottom=low.tolist(), color=colours, width=0.9)
    axes.axhline(0, color=INK, linewidth=0.7)
    axes.use_sticky_edges = False  # room below the lowest bar
    axes.margins(x=0.01, y=0.06)
    axes.set_xticks([])
    unstable = int(((lower < 0) & (upper > 0)).sum())
    on, off = int((lower >= 0).sum()), int((upper <= 0).sum())
    title = f"layer {number}: {on} always on, {off} always off, {unstable} of either sign"
    axes.set_title(title, fontsize=8.5, loc="left")


def output_ranges(label: int, values: Tensor, ranges: Mapping[str, tuple[Tensor, Tensor]], eps: str) -> Figure:
    """The range of every output (K,) over the ball by several methods, around its value (K,) at the image."""

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        width = 0.8 / len(ranges)
        for number, (name, (lower, upper)) in enumerate(ranges.items()):
            places = [k + (number - (len(ranges) - 1) / 2) * width for k in range(len(values))]
            heights, bottoms = (upper - lower).tolist(), lower.tolist()
            axes.bar(places, heights, bottom=bottoms, width=0.9 * width, color=SERIES[number], alpha=0.6, label=name)
        axes.scatter(range(len(values)), values.tolist(), s=10, color=INK, zorder=3, label="value at the image")
        axes.axvspan(label - 0.5, label + 0.5, color=PROVED, alpha=0.08, linewidth=0)
        axes.use_sticky_edges = False
        axes.margins(y=0.06)
        axes.set_xticks(range(len(values)))
        axes.set_xlabel(f"class (shaded: the label); every pixel ± {eps}")
        axes.set_ylabel("output")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4)

    return Figure("outputs", "Ranges of the outputs over the ball, by method", draw, (6.2, 3.0))


def filters(model: nn.Module, shape: tuple[int, ...]) -> Figure | None:
    """The weights that read the image: convolution kernels, or rows of a matrix laid out as images (C, H, W)."""
    weight = next((p.detach() for p in model.parameters() if p.dim() in (2, 4)), None)
    if weight is None:
        return None
    if weight.dim() == 2:
        if len(shape) != 3 or weight.shape[1] != math.prod(shape):
            return None
        weight = weight.reshape(-1, *shape)
    shown = weight[:MOST_FILTERS].float().cpu()  # (F, C, h, w)
    size = float(shown.abs().max()) or 1.0
    columns = min(8, len(shown))
    rows = math.ceil(len(shown) / columns)

    def draw(canvas: Canvas) -> None:
        grid = canvas.subplots(rows, columns, squeeze=False).flatten()
        for axes in grid:
            axes.set_axis_off()
        for axes, one in zip(grid, shown, strict=False):
            axes.imshow(difference_pixels(one, size))

    return Figure("filters", "First weights: red positive, blue negative", draw, (0.75 * columns, 0.8 * rows))
