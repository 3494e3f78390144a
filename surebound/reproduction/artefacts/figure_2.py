"""Figure 2: interval bound propagation as a diagram, from the numbers of a real network."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surebound.report.figure import BROKEN, INK, MUTED, PROVED, SERIES, Figure
from surebound.report.gallery import image_pixels
from surebound.reproduction.artefacts.base import Artefact, Drawn, notes_at, number
from surebound.reproduction.bench import Bench
from surebound.reproduction.propagation import layers
from surebound.reproduction.scale import Scale, training
from surebound.reproduction.work import Compute, Training, WorkPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

EPS = Fraction(1, 10)


def _network(scale: Scale) -> Training:
    net = "large" if scale is Scale.PAPER else "small"
    return training(scale, "mnist", net, "ibp", "0.4")


def _work(scale: Scale) -> Compute:
    net, samples = _network(scale), 400 if scale is Scale.SMOKE else 4000

    def compute(bench: Bench) -> dict[str, Any]:
        return layers(bench.load(net), EPS, samples=samples)

    return Compute("propagation", (net.name, EPS, samples), compute, 10.0)


def plan(scale: Scale) -> WorkPlan:
    return WorkPlan((_network(scale),), computations=(_work(scale),))


def _cloud(axes: Axes, points: Any, lower: Any, upper: Any, nominal: Any) -> None:
    """Samples of the polytope, their box, and the image itself."""
    from matplotlib.patches import Rectangle

    points = np.array(points)
    axes.add_patch(
        Rectangle((lower[0], lower[1]), upper[0] - lower[0], upper[1] - lower[1], facecolor=MUTED, alpha=0.16,
                  edgecolor=MUTED, linewidth=1)
    )  # fmt: skip
    axes.plot(points[:, 0], points[:, 1], ".", color=SERIES[0], markersize=1.2, alpha=0.5, rasterized=True)
    axes.plot(nominal[0], nominal[1], "o", color=BROKEN, markersize=4)
    pad = [0.12 * max(upper[i] - lower[i], 1e-6) for i in (0, 1)]
    axes.set_xlim(lower[0] - pad[0], upper[0] + pad[0])
    axes.set_ylim(lower[1] - pad[1], upper[1] + pad[1])
    axes.tick_params(labelsize=6.5)


def _picture(values: dict[str, Any]) -> Figure:
    frames = values["layers"]

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots(1, len(frames) + 2)
        axes[0].imshow(image_pixels(torch.tensor(values["image"])))
        axes[0].set_axis_off()
        axes[0].set_title(f"a {values['label']}, ε = {values['eps']}")
        for each, frame in zip(axes[1:], frames, strict=False):
            _cloud(each, frame["values"], frame["lower"], frame["upper"], frame["nominal"])
            each.set_title(f"{frame['name']}\n2 of {frame['count']:,} units")
            each.set_box_aspect(1)
        last = axes[-1]
        _cloud(last, values["outputs"], values["lower"], values["upper"], values["nominal"])
        ends = np.array([*last.get_xlim(), *last.get_ylim()])
        last.set_xlim(ends.min(), ends.max())
        last.set_ylim(ends.min(), ends.max())
        last.plot([ends.min(), ends.max()], [ends.min(), ends.max()], color=PROVED, linewidth=1)
        last.plot(values["lower"][0], values["upper"][1], "s", color=INK, markersize=4)
        last.set_title("outputs and\nspecification")
        last.set_xlabel(f"output of {values['label']} (true)", fontsize=7.5)
        last.set_ylabel(f"output of {values['rival']}", fontsize=7.5)
        last.set_box_aspect(1)

    return Figure(
        "figure-2",
        "Samples of the adversarial polytope and interval bounds through the layers of a network",
        draw,
        (10.5, 2.6),
        "Blue: random points and corners of the ball, pushed through the network. Grey: interval bounds. Red: the "
        "image itself. On the right the true class must stay right of the green line; the black square is the worst "
        "case that the bounds of the outputs allow.",
    )


def draw(bench: Bench, scale: Scale) -> Drawn:
    values, net = bench.values(_work(scale)), _network(scale)
    over = f"Class {values['rival']} minus the true {values['label']}"
    headline = (
        f"{over}: at most {values['sampled']:.3f} in the samples; "
        f"bounded by {values['bound']:.3f} with elision, {values['bound_without_elision']:.3f} without."
    )
    notes = notes_at(scale, f"Test image {values['index']}.")
    numbers = (
        number(bench, net, figure="figure-2", bound=values["bound"], sampled=values["sampled"], eps=values["eps"]),
    )
    return Drawn((), (_picture(values),), headline, notes, numbers)


ARTEFACT = Artefact("figure-2", "interval-propagation", "Interval bound propagation", plan, draw)
