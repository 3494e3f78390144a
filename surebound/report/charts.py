"""The charts of a report: accuracy by radius, errors by training step, seconds by stage."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from surebound.report.figure import BROKEN, INK, MUTED, PROVED, SERIES, Figure
from surebound.report.source import ReportedRun
from surebound.report.verdicts import radius_text
from surebound.verify.radius import ImageRadius, staircase

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def accuracy_by_radius(runs: Sequence[ReportedRun]) -> Figure | None:
    """Solid: proved. Dashed: no counterexample found. Between a network's two lines lies the truth."""
    shown = [run for run in runs if len(run.summaries) > 1]
    if not shown:
        return None

    def draw(canvas: Canvas) -> None:
        from surebound.verify.plot import draw_accuracy

        axes = canvas.add_subplot()
        for run, colour in zip(shown, itertools.cycle(SERIES), strict=False):
            draw_accuracy(axes, run.summaries, colour, run.name)
        if len(shown) > 1:
            axes.legend(loc="best")

    return Figure(
        "accuracy",
        "Accuracy by radius: solid lines are proved, dashed lines have no counterexample yet",
        draw,
        caption="Solid: proved robust. Dashed: no counterexample found. The truth lies in the shaded band.",
    )


def training_curves(run: ReportedRun) -> Figure | None:
    """Held-out errors by step, with the radius of the curriculum behind them."""
    evaluations, training = run.of("evaluation"), run.of("training")
    if len(evaluations) < 2 and len(training) < 2:
        return None

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        _schedule(axes, training)
        if len(evaluations) >= 2:
            _held_out(axes, evaluations)
        else:
            _losses(axes, training)
        axes.set_xlabel("training step")
        axes.margins(x=0.01)
        axes.grid()
        # Above the axes: no corner stays free of curves in every run.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)

    what = "held-out errors" if len(evaluations) >= 2 else "loss"
    return Figure(
        f"training-{slug(run.name)}",
        f"{run.name}: {what} by training step",
        draw,
        (6.2, 2.6),
        "Errors on held-out images during training (plain floating-point bounds, a short attack). "
        "Grey: the radius of the curriculum."
        if len(evaluations) >= 2
        else "Loss during training. Grey: the radius of the curriculum.",
    )


def _schedule(axes: Axes, training: Sequence[dict[str, Any]]) -> None:
    eps = [(m["step"], m["epsilon"]) for m in training if "epsilon" in m]
    if not eps or max(e for _, e in eps) == 0:
        return
    other = axes.twinx()
    steps, radii = zip(*eps, strict=True)
    other.fill_between(steps, radii, color=MUTED, alpha=0.14, linewidth=0)
    other.set_ylim(0, 1.6 * max(radii))
    other.set_yticks([max(radii)], [f"ε {max(radii):.3g}"])
    other.tick_params(length=0, labelcolor=MUTED)
    other.set_zorder(axes.get_zorder() - 1)
    axes.patch.set_visible(False)


def _held_out(axes: Axes, evaluations: Sequence[dict[str, Any]]) -> None:
    steps = [m["step"] for m in evaluations]
    axes.plot(steps, [100 * m["clean_error"] for m in evaluations], color=INK, label="clean")
    for key, name, colour in (("pgd_error", "attacked", BROKEN), ("verified_error", "not proved", PROVED)):
        radii = sorted({r for m in evaluations for r in m.get(key, {})}, key=Fraction)
        for radius in radii[-1:]:
            values = [100 * m[key].get(radius, float("nan")) for m in evaluations]
            axes.plot(steps, values, color=colour, label=f"{name}, ε {radius_text(Fraction(radius))}")
    axes.set_ylabel("held-out images, %")
    axes.set_ylim(bottom=0)


def _losses(axes: Axes, training: Sequence[dict[str, Any]]) -> None:
    points = [(m["step"], m["loss"]) for m in training if "loss" in m]
    axes.plot([p[0] for p in points], [p[1] for p in points], color=INK, label="loss")
    axes.set_ylabel("loss")


def stage_times(run: ReportedRun) -> Figure | None:
    """Where the seconds of a verification went."""
    spent: dict[str, float] = {}
    for summary in run.summaries:
        for stage, seconds in summary.stage_seconds:
            spent[stage] = spent.get(stage, 0.0) + seconds
    if not spent:
        return None

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        names = list(spent)[::-1]
        bars = axes.barh(names, [spent[n] for n in names], color=SERIES[0], height=0.62)
        axes.bar_label(bars, [f"{spent[n]:.3g} s" for n in names], padding=4, fontsize=8.5, color=INK)
        axes.set_xlabel("seconds, summed over images")
        axes.margins(x=0.12)
        axes.tick_params(axis="y", length=0)

    height = 0.7 + 0.26 * len(spent)
    name = f"stages-{slug(run.name)}"
    return Figure(name, f"{run.name}: seconds spent by each stage", draw, (6.2, height))


def radius_distribution(found: Sequence[ImageRadius], name: str, axis: str) -> Figure:
    """Shares of the images that are proved up to each radius, and that no counterexample reaches within it.

    ``axis``: what the radii are.
    """
    radii, proved, alive = staircase(found)

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        edges = [float(radius) for radius in radii]
        solid, dashed = [100 * share for share in proved], [100 * share for share in alive]
        axes.stairs(dashed, edges, baseline=solid, fill=True, color=PROVED, alpha=0.13, linewidth=0)
        axes.stairs(dashed, edges, baseline=None, color=PROVED, linestyle=(0, (4, 2)), linewidth=1.2, label="unbroken")
        axes.stairs(solid, edges, baseline=None, color=PROVED, linewidth=1.8, label="proved")
        axes.set_xlabel(axis)
        axes.set_ylabel("images, %")
        axes.set_ylim(0, 101)
        axes.margins(x=0.01)
        axes.grid()
        axes.legend(loc="best")

    alt = f"{name}: shares of {len(found)} images that are proved, and that no counterexample reaches, by radius"
    return Figure("radius", alt, draw, caption="Solid: proved up to the radius. Dashed: no counterexample within it.")


def slug(name: str) -> str:
    """A name as part of a file's name or an id."""
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in name).strip("-").lower()
