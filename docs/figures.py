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


#: One of each threat, at a size that is seen.
THREATS = (
    "linf:0.15", "l2:2", "l1:3", "l0:4", "patch:3", "brightness:0.3", "contrast:0.6", "gamma:0.6",
    "hue:90deg", "blur:1", "rotation:20deg", "translation:1", "scaling:0.3", "linf:0.1+rotation:20deg",
)  # fmt: skip


def threats() -> Figure:
    """One coloured digit, and two ends of every threat to it."""
    import torch

    import surebound as sb
    from surebound.attack.box import InnerBox
    from surebound.threats import Changed, Patched

    digit = sb.data.load("digits").test.batch(torch.tensor([0]))[0]
    paint, paper = torch.tensor([0.95, 0.75, 0.2]), torch.tensor([0.1, 0.2, 0.35])
    image = paper.view(3, 1, 1) + digit * (paint - paper).view(3, 1, 1)  # (1, 3, 8, 8): hue needs colours

    def end(name: str, sign: int) -> torch.Tensor:
        network, region = sb.threat(name).against(torch.nn.Identity(), image, (0, 1))
        box = InnerBox.of(region[len(region.x) // 3 :])  # somewhere, of a patch's places
        if isinstance(network, (Changed, Patched)) and "linf" not in name:
            return network.image(box.lower if sign < 0 else box.upper)
        draw = torch.Generator().manual_seed(3)
        few = torch.rand(box.lower.shape, generator=draw) < (0.04 if name.startswith("l1") else 1.0)
        point = box.settled(box.reference + sign * 100 * few * torch.randn(box.lower.shape, generator=draw))
        return network.image(point) if isinstance(network, Changed) else point

    def draw(canvas: Canvas) -> None:
        panels = canvas.subplots(4, 8)
        for number, name in enumerate(("as it is", *THREATS)):
            block, column = divmod(number, 8)
            for row, sign in ((2 * block, -1), (2 * block + 1, 1)):
                shown = image if number == 0 else end(name, sign)
                panels[row, column].imshow(shown[0].permute(1, 2, 0).clamp(0, 1))
                panels[row, column].set(xticks=[], yticks=[])
            panels[2 * block, column].set_title(name.replace("+", "\n+ "), fontsize=8)
        for row in (2, 3):
            panels[row, 7].set_axis_off()

    return Figure("threats", "A coloured digit, and two ends of each change", draw, (8.8, 5.2))


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
