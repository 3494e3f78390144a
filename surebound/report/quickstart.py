"""The picture of the quickstart: ranges of the outputs, and accuracy attacked and proved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surebound.experiment.quickstart import BoundedImage, Curve, Quickstart
from surebound.report.figure import BROKEN, INK, PROVED, SERIES, Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.figure import SubFigure


ALT = "Ranges of the outputs over a ball; accuracy by radius, attacked and proved"


def picture(result: Quickstart) -> Figure:
    """An image, the outputs' ranges over its ball for every network, and the curves."""

    def draw(canvas: Canvas) -> None:
        parts = canvas.add_gridspec(1, 2, width_ratios=(1.8, 1.7))
        _left(canvas.add_subfigure(parts[0]), result)
        _curves(canvas.add_subfigure(parts[1]).add_subplot(), result.curves)

    return Figure("quickstart", ALT, draw, (10.5, 4.2))


def ranges(result: Quickstart) -> Figure:
    """The left half of the picture: a page that has the curves anyway needs no more."""
    caption = (
        "What each network can answer when every pixel of one test image may change: dots are the outputs at the "
        "image, bars the ranges proved. The true class (green) must stay above the others."
    )
    return Figure("ranges", ALT.split(";")[0], lambda canvas: _left(canvas, result), (6.2, 3.8), caption)


def _left(canvas: SubFigure | Canvas, result: Quickstart) -> None:
    grid = canvas.add_gridspec(len(result.examples), 2, width_ratios=(0.5, 1.3))
    _image(canvas.add_subplot(grid[:, 0]), result.examples[0])
    for row, (curve, example) in enumerate(zip(result.curves, result.examples, strict=True)):
        last = row == len(result.examples) - 1
        _ranges(canvas.add_subplot(grid[row, 1]), curve.name, example, last=last)


def _image(axes: Axes, example: BoundedImage) -> None:
    axes.imshow(example.image.numpy(), cmap="gray_r", vmin=0, vmax=1)
    axes.set_axis_off()
    axes.set_title(f"a test image,\nevery pixel ± {example.eps}", fontsize=9)


def _ranges(axes: Axes, name: str, example: BoundedImage, *, last: bool) -> None:
    """The range of every output over the ball: proved when the true class's lies above all the others'."""
    classes = range(len(example.value))
    colours = [PROVED if k == example.label else BROKEN for k in classes]
    axes.bar(
        classes,
        (example.upper - example.lower).tolist(),
        bottom=example.lower.tolist(),
        color=colours,
        alpha=0.55,
        width=0.7,
    )
    axes.scatter(classes, example.value.tolist(), s=9, color=INK, zorder=3)
    axes.axhline(float(example.lower[example.label]), color=PROVED, linewidth=0.8, linestyle=":")
    axes.use_sticky_edges = False  # room below the lowest bar
    axes.margins(y=0.06)
    axes.set_title(name, fontsize=9)
    axes.set_xticks(list(classes))
    axes.tick_params(labelsize=8)
    axes.set_ylabel("output", fontsize=8)
    if last:
        axes.set_xlabel("class (dot: value at the image, bar: proved range)", fontsize=8)


def _curves(axes: Axes, curves: tuple[Curve, ...]) -> None:
    """Between a network's two lines lies the truth."""
    for curve, colour in zip(curves, SERIES[: len(curves)], strict=True):
        eps = [float(e) for e in curve.eps]
        proved, attacked = [100 * v for v in curve.proved], [100 * v for v in curve.attacked]
        axes.plot(eps, attacked, color=colour, linestyle="--", linewidth=1.2)
        axes.plot(eps, proved, color=colour, linewidth=2.0, label=curve.name)
        axes.fill_between(eps, proved, attacked, color=colour, alpha=0.12)
    # The style of a line is explained once, not for every network: the legend stays as wide as the axes.
    axes.plot([], [], color=INK, linewidth=2.0, label="proved")
    axes.plot([], [], color=INK, linestyle="--", linewidth=1.2, label="survives the attack")
    axes.set_xlabel("ε (largest change of a pixel; pixels are in [0, 1])", fontsize=9)
    axes.set_ylabel("test images, %", fontsize=9)
    axes.set_ylim(0, 101)
    axes.margins(x=0)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7.5, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    axes.grid()
