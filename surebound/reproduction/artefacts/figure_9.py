"""Figure 9: the loss around the image of figure 1, towards PGD's point and towards the exact counterexample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from surebound.report.figure import BROKEN, INK, SERIES, Figure
from surebound.reproduction.artefacts import gap_case
from surebound.reproduction.artefacts.base import Artefact, Drawn, notes_at, number
from surebound.reproduction.bench import Bench
from surebound.reproduction.scale import Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

BLUE, ORANGE = "#c9dcf0", "#f3d3bd"  # the classes on the surface


def _picture(values: dict[str, Any]) -> Figure:
    axis, loss = np.array(values["axis"]), np.array(values["loss"])
    wrong = np.array(values["class"]) != values["label"]
    inside = np.array(values["inside"], dtype=float)
    u, v = np.meshgrid(axis, axis, indexing="ij")
    start, pgd, exact = values["end_losses"]

    def draw(canvas: Canvas) -> None:
        solid: Any = canvas.add_subplot(1, 2, 1, projection="3d")
        colours = np.where(wrong[..., None], np.array(_rgb(ORANGE)), np.array(_rgb(BLUE)))
        solid.plot_surface(u, v, loss, facecolors=colours, linewidth=0, rcount=81, ccount=81, shade=False)
        for a, b, height, colour in ((0, 0, start, INK), (1, 0, pgd, SERIES[0]), (0, 1, exact, BROKEN)):
            solid.scatter([a], [b], [height], color=colour, s=26, depthshade=False, zorder=9)
        solid.set_xlabel("u: towards PGD's", labelpad=-6)
        solid.set_ylabel("v: towards the exact", labelpad=-6)
        solid.set_title("loss")
        solid.tick_params(labelsize=7, pad=-3)
        solid.view_init(28, -125)
        top = canvas.add_subplot(1, 2, 2)
        shown = top.contourf(u, v, loss, levels=24, cmap="cividis")
        top.contour(u, v, loss, levels=[0.0], colors=[INK], linewidths=1.4)
        top.contour(u, v, inside, levels=[0.5], colors=["#ffffff"], linewidths=1.3, linestyles="--")
        top.plot(0, 0, "o", color=INK, markersize=5)
        top.plot(1, 0, "o", color=SERIES[0], markersize=6, markeredgecolor="#ffffff")
        top.plot(0, 1, "o", color=BROKEN, markersize=6, markeredgecolor="#ffffff")
        top.set_xlabel("u")
        top.set_ylabel("v")
        top.set_aspect("equal")
        canvas.colorbar(shown, ax=top, shrink=0.72, label="loss (above 0: misclassified)")

    return Figure(
        "figure-9",
        "Loss around an image in the plane of the worst changes found by PGD and by the complete search",
        draw,
        (8.4, 3.9),
        "Left: the loss as a surface, orange where the network is wrong. Right: the same from above; black line: "
        "decision boundary; dashed: the ε-ball. Dots: the image (black), PGD's worst (blue), the counterexample (red).",
    )


def _rgb(colour: str) -> tuple[float, float, float]:
    value = int(colour[1:], 16)
    return (value >> 16) / 255, (value >> 8 & 255) / 255, (value & 255) / 255


def draw(bench: Bench, scale: Scale) -> Drawn:
    values = bench.values(gap_case.case(scale))
    notes = notes_at(scale)
    if not values["found"]:
        return Drawn(headline=gap_case.nothing_found(values, scale), notes=notes)
    _, pgd, exact = values["end_losses"]
    headline = f"The loss is {pgd:.3f} at PGD's worst point, {exact:+.4f} at the exact one; above 0 is wrong."
    net = gap_case.network(scale)
    numbers = (number(bench, net, figure="figure-9", index=values["index"], losses=values["end_losses"]),)
    return Drawn((), (_picture(values),), headline, notes, numbers)


ARTEFACT = Artefact("figure-9", "loss-landscape", "The loss around that image", gap_case.plan, draw)
