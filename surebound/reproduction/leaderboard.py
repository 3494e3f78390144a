"""The leaderboard: packaged networks beside the paper's and the literature's, dataset by dataset, radius by radius."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from surebound import zoo
from surebound.report.figure import INK, MUTED, SERIES, Figure
from surebound.report.table import Table, write_text
from surebound.reproduction.artefacts.paper import DATA, METHODS, STATE_OF_THE_ART, Row
from surebound.zoo import ZooEntry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

SINCE = (
    Row("mnist", "0.1", "best since, CNN7 on a GPU", float("nan"), None, 1.6, quoted=True),
    Row("mnist", "0.3", "best since, CNN7 on a GPU", float("nan"), None, 6.0, quoted=True),
    Row("cifar10", "2-255", "best since, CNN7 on a GPU", float("nan"), None, 35.4, quoted=True),
    Row("cifar10", "8-255", "best since, CNN7 on a GPU", float("nan"), None, 64.3, quoted=True),
)
"""The least certified errors of IBP and its successors in tuned re-runs (Mao et al. 2025; De Palma et al. 2024)."""

TITLE = "# Leaderboard"
INTRODUCTION = """Errors in percent on all test images. *Verified*: not proved robust, whatever the attack; ours are
proved for every float32 execution. *By*: the complete cascade of `surebound verify`
(of the first test images only, where it says so), or interval bounds alone where that has not been run.
The paper is Gowal et al. 2018 (table 4, the best of its three networks); *best since* are the
least certified errors of IBP and its successors in tuned re-runs (Mao et al. 2025, De Palma et al. 2024).
`sb.load(NAME)` loads a network, `surebound zoo --check NAME` checks its packaged certificates, if it has any.
`surebound zoo --leaderboard docs` wrote this page."""


@dataclass(frozen=True)
class Standing:
    """One line: errors in percent, None where nobody measured them."""

    data: str
    eps: Fraction
    who: str
    method: str
    clean: float | None
    pgd: float | None
    verified: float
    by: str
    core_hours: float | None = None
    ours: bool = False


def standings() -> list[Standing]:
    """Every packaged network and published number with a verified error that says something, the best first."""
    found = [_published(row) for row in (*STATE_OF_THE_ART, *SINCE) if row.verified is not None and row.verified < 100]
    for entry in zoo.entries():
        for radius in entry.results["verified_error"]:
            standing = _packaged(entry, radius)
            if standing.verified < 100:
                found.append(standing)
    order = list(DATA)
    return sorted(found, key=lambda s: (order.index(s.data), s.eps, s.verified, s.who))


def _published(row: Row) -> Standing:
    who = row.method if row.quoted else f"Gowal et al. 2018: {METHODS[row.method]}"
    clean = None if row.clean != row.clean else row.clean
    verified = row.verified if row.verified is not None else 100.0
    return Standing(row.data, row.eps, who, row.method, clean, row.pgd, verified, "as published")


def _packaged(entry: ZooEntry, radius: str) -> Standing:
    """Take the float-sound error of the complete cascade where it has been run, else the interval bounds'."""
    results, decided = entry.results, entry.decided(radius)
    whole = results["pgd_images"] == results["images"]
    attacked = decided["pgd_error"] if decided else results["pgd_error"].get(radius) if whole else None
    error = decided["float_sound_verified_error"] if decided else results["verified_error"][radius]
    part = f", first {decided['images']:,}" if decided and decided["images"] < results["images"] else ""
    return Standing(
        entry.data, Fraction(radius), entry.name, entry.method, 100 * results["clean_error"],
        None if attacked is None else 100 * attacked, 100 * error,
        f"cascade{part}" if decided else "interval bounds", entry.core_hours, ours=True,
    )  # fmt: skip


def page(found: Sequence[Standing]) -> str:
    """Write the page as Markdown: a table for every dataset and radius, ours in bold, and the two figures."""
    parts = [TITLE, INTRODUCTION]
    for (data, eps), rows in itertools.groupby(found, key=lambda s: (s.data, s.eps)):
        parts += [f"## {DATA[data]}, ε = {_radius(eps)}", _table(list(rows))]
    parts += [
        "## Accuracy against proofs",
        *(f"![{f.alt}](images/{f.name}.svg)\n\n{f.caption}" for f in figures(found)),
    ]
    return "\n\n".join(parts) + "\n"


def _radius(eps: Fraction) -> str:
    return f"{float(eps):g}" if 100 % eps.denominator == 0 else str(eps)


def _table(rows: Sequence[Standing]) -> str:
    cells = []
    for s in rows:
        name, verified = (f"**`{s.who}`**", f"**{s.verified:.2f}**") if s.ours else (s.who, f"{s.verified:.2f}")
        method = s.method if s.ours else METHODS.get(s.method, "")
        hours = "" if s.core_hours is None else f"{s.core_hours:.1f}"
        cells.append((name, verified, _number(s.clean), _number(s.pgd), s.by, method, hours))
    return Table(
        "standings", ("network", "verified", "clean", "PGD", "by", "method", "core-hours"), tuple(cells)
    ).markdown()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def figures(found: Sequence[Standing]) -> list[Figure]:
    """Draw verified error over clean error, and over what the training cost."""

    def against_clean(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        shown = [s for s in found if s.clean is not None]
        for (data, eps), colour in _colours(shown):
            rows = [s for s in shown if (s.data, s.eps) == (data, eps)]
            label = f"{DATA[data]} {_radius(eps)}"
            for ours, marker in ((False, "o"), (True, "*")):
                part = [s for s in rows if s.ours is ours]
                x, y = [s.clean or 0.0 for s in part], [s.verified for s in part]
                size, face = (110, colour) if ours else (26, "none")
                axes.scatter(
                    x, y, size, marker=marker, facecolors=face, edgecolors=colour, label=label if ours else None
                )
        _percent(axes, "clean error, %")

    def against_cost(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        shown = [s for s in found if s.core_hours is not None]
        for (data, eps), colour in _colours(shown):
            rows = [s for s in shown if (s.data, s.eps) == (data, eps)]
            label = f"{DATA[data]} {_radius(eps)}"
            axes.scatter(
                [s.core_hours or 0.0 for s in rows],
                [s.verified for s in rows],
                110,
                marker="*",
                color=colour,
                label=label,
            )
        _percent(axes, "training, core-hours", logarithmic=False)

    return [
        Figure(
            "leaderboard-clean", "Verified error over clean error of packaged and published networks", against_clean,
            caption="Stars: packaged networks. Circles: published numbers. Lower left is better.",
        ),
        Figure(
            "leaderboard-cost", "Verified error of packaged networks over core-hours of training", against_cost,
            caption="What each packaged network cost to train, on one core of a CPU, where that was noted.",
        ),
    ]  # fmt: skip


def _colours(rows: Sequence[Standing]) -> list[tuple[tuple[str, Fraction], str]]:
    kinds = sorted({(s.data, s.eps) for s in rows}, key=lambda kind: (list(DATA).index(kind[0]), kind[1]))
    return list(zip(kinds, itertools.cycle((*SERIES, INK, MUTED)), strict=False))


def _percent(axes: Axes, across: str, logarithmic: bool = True) -> None:
    """Label the axes of a scatter; errors span two orders of magnitude."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xlabel(across)
    axes.set_ylabel("verified error, %")
    axes.set_yscale("log")
    if logarithmic:
        axes.set_xscale("log")
    for axis in (axes.xaxis, axes.yaxis) if logarithmic else (axes.yaxis,):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid()
    axes.legend(loc="best")


def write(folder: Path) -> list[Path]:
    """Write `leaderboard.md` and the figures it shows, under `images/`."""
    found = standings()
    target = folder / "leaderboard.md"
    write_text(target, page(found))
    return [target, *(path for figure in figures(found) for path in figure.write(folder / "images", ("svg",)))]
