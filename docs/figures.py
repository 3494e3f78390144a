"""Figures of the pages, drawn from results and formulas: `python docs/figures.py` writes them to docs/images."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from surebound.report.figure import BROKEN, INK, MUTED, OPEN, PROVED, SERIES, Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

ROOT = Path(__file__).parents[1]
STAGES = ("clean", "interval", "crown", "pgd", "multi-targeted", "branch-and-bound", "mip")


def funnel(path: Path) -> Figure:
    """How many images are still open after each stage, and what the stage said of the others."""
    result = json.loads(path.read_text(encoding="utf-8"))
    settled = {(stage, status): count for stage, status, count in result["stages"]}
    left, rows = int(result["images"]), []
    for stage in STAGES:
        proved, broken = settled.get((stage, "robust"), 0), settled.get((stage, "falsified"), 0)
        left -= proved + broken
        rows.append((stage, proved, broken, left, float(result["stage_seconds"].get(stage, 0.0))))

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        for place, (_, proved, broken, open_, seconds) in enumerate(rows):
            axes.barh(place, max(open_, 0.7), color=OPEN, height=0.6, alpha=0.8)
            parts = [f"{proved:,} proved"] * bool(proved) + [f"{broken:,} broken"] * bool(broken)
            text = f"{open_:,} open · {' and '.join(parts) or 'nothing settled'} · {seconds:,.0f} s"
            axes.text(max(open_, 0.7) * 1.12, place, text, va="center", fontsize=8.5, color=INK)
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(0.5, 4e6)
        axes.set_xticks([1, 10, 100, 1000, 10_000], ["1", "10", "100", "1,000", "10,000"])
        axes.minorticks_off()
        axes.set_xlabel("images that are still open after the stage")
        axes.tick_params(axis="y", length=0)

    eps = result["eps"]
    return Figure(
        "cascade", f"10,000 MNIST images within {eps}: what each stage of the cascade settled", draw, (7.0, 2.9)
    )


def split() -> Figure:
    """An unstable ReLU between its lines, and the two halves of a split, where nothing is lost."""

    def panel(axes: Axes, low: float, high: float, title: str) -> None:
        lower, upper = max(low, 0.0), max(high, 0.0)
        slope = (upper - lower) / (high - low)
        if low < 0 < high:
            axes.fill([low, 0, high], [0, 0, high], color=OPEN, alpha=0.3, linewidth=0)
            axes.plot([low, high], [0.6 * low, 0.6 * high], color=SERIES[0], linestyle=(0, (4, 2)), linewidth=1.3)
        if low < 0 < high:
            axes.plot([low, high], [lower, lower + slope * (high - low)], color=BROKEN, linewidth=1.3)
        axes.plot([-1.2, 0, 1.6], [0, 0, 1.6], color=MUTED, linewidth=0.8)
        inside = sorted({low, min(max(0.0, low), high), high})
        axes.plot(inside, [max(v, 0.0) for v in inside], color=INK)
        axes.set(
            xticks=[low, 0, high] if low < 0 < high else [low, high], yticks=[], xlim=(-1.3, 1.7), ylim=(-0.8, 1.8)
        )
        axes.set_title(title, loc="left")

    def draw(canvas: Canvas) -> None:
        first, second, third = canvas.subplots(1, 3)
        panel(first, -1.0, 1.5, "unstable: between two lines")
        panel(second, -1.0, 0.0, "split, input ≤ 0: exact")
        panel(third, 0.0, 1.5, "split, input ≥ 0: exact")
        for axes in (second, third):
            axes.patch.set_facecolor(PROVED)
            axes.patch.set_alpha(0.06)

    return Figure(
        "split",
        "A ReLU with an input of either sign between two lines, and its two halves without loss",
        draw,
        (7.4, 2.2),
    )


def threats() -> Figure:
    """One digit, and both ends of every change by parameters."""
    import torch

    import surebound as sb
    from surebound.threats import Changed, Patched

    image = sb.data.load("digits").test.batch(torch.tensor([0]))[0]
    names = ("brightness:0.3", "contrast:0.6", "gamma:0.6", "blur:1", "rotation:20deg", "translation:1", "scaling:0.3",
             "patch:3", "l0:1")  # fmt: skip

    def draw(canvas: Canvas) -> None:
        panels = canvas.subplots(2, len(names) + 1)
        for column, name in enumerate(("as it is", *names)):
            for row, sign in enumerate((-1, 1)):
                changed = image
                if column:
                    network, region = sb.threat(name).against(torch.nn.Identity(), image, (0, 1))
                    ends = region[len(region.x) // 3 :].interval()  # somewhere, of a patch's places
                    point = ends.lower if sign < 0 else ends.upper
                    changed = network.image(point) if isinstance(network, (Changed, Patched)) else point
                panels[row, column].imshow(changed[0, 0], cmap="gray", vmin=0, vmax=1)
                panels[row, column].set(xticks=[], yticks=[])
            panels[0, column].set_title(name, fontsize=8)

    return Figure("threats", "A digit, and the smallest and the largest of each change", draw, (10.8, 2.6))


def growth(path: Path) -> Figure:
    """What bounds and training steps cost in forward passes, as one thing about the network grows."""
    sweeps = json.loads(path.read_text(encoding="utf-8"))["sweeps"]
    lines = ("interval", "crown-ibp", "crown", "IBP step", "nominal step")
    names = {"width": "channels", "depth": "convolutions", "classes": "classes", "eps": "radius", "batch": "images"}

    def draw(canvas: Canvas) -> None:
        panels = canvas.subplots(1, len(names), sharey=True)
        for axes, (sweep, name) in zip(panels, names.items(), strict=True):
            points = sweeps[sweep]
            for line, colour in zip(lines, SERIES, strict=False):
                at = [(float(Fraction(point[sweep])), point["passes"].get(line)) for point in points]
                drawn = [(x, y) for x, y in at if y is not None]
                axes.plot(*zip(*drawn, strict=True), marker="o", markersize=3, color=colour, label=line)
            axes.set(xscale="log", yscale="log", xlabel=name)
            axes.set_xticks([float(Fraction(point[sweep])) for point in points], [point[sweep] for point in points])
            axes.minorticks_off()
            axes.grid(axis="y")
        panels[0].set_ylabel("forward passes")
        panels[0].legend(loc="upper left", fontsize=7)

    return Figure(
        "growth", "What bounds and training steps cost in forward passes, as networks grow", draw, (11.0, 2.8)
    )


def main() -> None:
    """Write the figures."""
    cascade = funnel(ROOT / "results" / "verification" / "mnist-small-ibp-0.4-0.3.json")
    for figure in (cascade, split(), threats(), growth(ROOT / "results" / "growth.json")):
        figure.write(ROOT / "docs" / "images", ("png",))


if __name__ == "__main__":
    main()
