"""Figure 4: the adversarial polytope of a toy problem and its interval box, during training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from surebound.report.figure import MUTED, PAPER, PROVED, Figure
from surebound.report.table import Table
from surebound.reproduction.artefacts.base import Artefact, Drawn, computed, notes_at
from surebound.reproduction.bench import Bench
from surebound.reproduction.polytope import evolution
from surebound.reproduction.scale import Scale
from surebound.reproduction.work import Compute, WorkPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def _work(scale: Scale) -> Compute:
    steps, side = ((0, 50, 200), 40) if scale is Scale.SMOKE else ((0, 200, 800), 150)
    return Compute("polytope", (steps, side), lambda bench: evolution(steps, side=side), 15.0)


def plan(scale: Scale) -> WorkPlan:
    return WorkPlan(computations=(_work(scale),))


def _picture(frames: list[dict[str, Any]]) -> Figure:
    def draw(canvas: Canvas) -> None:
        from matplotlib.patches import Rectangle

        for axes, frame in zip(canvas.subplots(1, len(frames)), frames, strict=True):
            points = np.array(frame["outputs"])
            lower, upper = frame["lower"], frame["upper"]
            width, height = upper[0] - lower[0], upper[1] - lower[1]
            axes.add_patch(Rectangle((lower[0], lower[1]), width, height, fill=False, edgecolor=PROVED, linewidth=1.8))
            axes.plot(points[:, 0], points[:, 1], ".", color=MUTED, markersize=1, rasterized=True)
            axes.set_xlim(lower[0] - 0.08 * width, upper[0] + 0.08 * width)
            axes.set_ylim(lower[1] - 0.08 * height, upper[1] + 0.08 * height)
            axes.set_title(f"training step {frame['step']}")
            axes.set_box_aspect(1)
            _magnified(axes, points, min(width, height))
            axes.set_xlabel("output 0")
        canvas.axes[0].set_ylabel("output 1")

    return Figure(
        "figure-4",
        "The adversarial polytope and its interval box at three training steps",
        draw,
        (8.4, 3.0),
        "Grey: outputs of a dense grid over the ball. Green: interval bounds. Each panel has its own scale; "
        "small panels magnify what is reached.",
    )


def _magnified(axes: Axes, points: NDArray[np.float64], box: float) -> None:
    """Show what is reached in a panel of its own where it is a speck in its box."""
    spread = np.ptp(points, axis=0).max()
    if spread > 0.2 * box:
        return
    inner = axes.inset_axes((0.53, 0.5, 0.36, 0.36))
    inner.plot(points[:, 0], points[:, 1], ".", color=MUTED, markersize=1, rasterized=True)
    inner.set(xticks=[], yticks=[], facecolor=PAPER)
    inner.set_title(f"× {box / max(float(spread), 1e-12):,.0f}", fontsize=7, pad=2)


def draw(bench: Bench, scale: Scale) -> Drawn:
    values = bench.values(_work(scale))
    rows = []
    for frame in values["frames"]:
        sampled = np.subtract(*frame["sampled"][::-1])
        box = np.subtract(frame["upper"], frame["lower"])
        loose = float(np.prod(box) / max(float(np.prod(sampled)), 1e-12))
        rows.append((frame["step"], f"{loose:.3g}", f"{frame['correct']} of 13", f"{frame['proved']} of 13"))
    columns = ("step", "area of the box / of the samples' box", "correct", "proved")
    notes = notes_at(
        scale,
        f"Seed {values['seed']}; 13 points, five of them positive, at an l-infinity distance of at least 0.16: twice "
        "the radius of 0.08, while the paper says 0.08. At 0.08 balls of different classes may overlap. The radius "
        "grows over the first half of the steps; the paper does not give its schedule.",
    )
    table = Table("figure-4", columns, tuple(rows), "How loose the box is", notes)
    first, last = rows[0], rows[-1]
    headline = (
        f"The box is {first[1]} times as large as what is reached before training, "
        f"{last[1]} times after {last[0]} steps."
    )
    numbers = (computed(values, figure="figure-4", steps=last[0], rows=[list(row) for row in rows], network="toy"),)
    return Drawn((table,), (_picture(values["frames"]),), headline, numbers=numbers)


ARTEFACT = Artefact("figure-4", "polytope", "The polytope and its box during training", plan, draw)
