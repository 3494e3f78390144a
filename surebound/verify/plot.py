"""Results as a figure: what is proved, what is open, what is broken."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from surebound.errors import InputError
from surebound.verify.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours of verdicts, wherever they are drawn.
PROVED, BROKEN, OPEN, WRONG = "#1b7f5c", "#c2513b", "#b98a1d", "#8b949c"


class Plot(Figure):
    """A figure of matplotlib that a notebook shows by itself, whatever its backend."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=150)
        return buffer.getvalue()


def plot(summaries: Sequence[Summary]) -> Plot:
    """Draw one curve by radius, or one bar."""
    if not summaries:
        raise InputError("there are no results to draw")
    if len(summaries) == 1:
        figure = Plot(figsize=(6.2, 1.5), layout="constrained")
        _bar(figure.add_subplot(), summaries[0])
        return figure
    figure = Plot(figsize=(6.2, 3.0), layout="constrained")
    axes = figure.add_subplot()
    draw_accuracy(axes, summaries, PROVED, "proved")
    axes.plot([], [], color=PROVED, linestyle=(0, (4, 2)), linewidth=1.2, label="no counterexample")
    axes.legend(loc="best", frameon=False)
    return figure


def draw_accuracy(axes: Axes, summaries: Sequence[Summary], colour: str, label: str) -> None:
    """Draw what is proved (solid) and what has no counterexample (dashed) by radius; the truth lies in between."""
    eps = [float(s.eps) for s in summaries]
    proved = [100 * (1 - s.verified_error) for s in summaries]
    alive = [100 * (1 - s.falsified_error) for s in summaries]
    axes.fill_between(eps, proved, alive, color=colour, alpha=0.13, linewidth=0)
    axes.plot(eps, alive, color=colour, linestyle=(0, (4, 2)), linewidth=1.2)
    axes.plot(eps, proved, color=colour, label=label, marker="o", markersize=3)
    axes.set_xlabel("ε, the largest change of a pixel (pixels are in [0, 1])")
    axes.set_ylabel("images, %")
    axes.set_ylim(0, 101)
    axes.margins(x=0.01)
    axes.grid(visible=True)


def _bar(axes: Axes, summary: Summary) -> None:
    proved, alive = 1 - summary.verified_error, 1 - summary.falsified_error
    clean, left = 1 - summary.clean_error, 0.0
    parts = (
        ("proved", proved, PROVED),
        ("undecided", alive - proved, OPEN),
        ("counterexample", clean - alive, BROKEN),
        ("wrong without change", 1 - clean, WRONG),
    )
    for name, share, colour in parts:
        axes.barh(0, 100 * share, left=100 * left, color=colour, label=f"{name} {share:.1%}")
        left += share
    axes.set_yticks([])
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"{summary.total} images, %, at ε = {summary.eps}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False, fontsize=8)
