"""Figure 3: verified and PGD accuracy over the radius, per method, with the best-of-training-radii envelope."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from surebound.report.figure import SERIES, Figure
from surebound.report.table import Cell, Table
from surebound.report.verdicts import radius_text
from surebound.reproduction.artefacts.base import (
    Artefact,
    Drawn,
    notes_at,
    number,
    points,
    shortened,
    summary_of,
    trained,
)
from surebound.reproduction.artefacts.paper import METHODS
from surebound.reproduction.artefacts.results_table import scheduled
from surebound.reproduction.bench import Bench
from surebound.reproduction.scale import Scale, known
from surebound.reproduction.work import Check, Training, WorkPlan
from surebound.search.stages import Clean, CrownBounds, IntervalBounds, PgdAttack
from surebound.verify import Cascade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

TRAINED: dict[Scale, dict[str, tuple[str, ...]]] = {
    Scale.SMOKE: {"ibp": ("0.1",), "adversarial": ("0.1",)},
    Scale.LAPTOP: {"ibp": ("0.1", "0.2", "0.3", "0.4"), "wong": ("0.1",), "adversarial": ("0.2", "0.4")},
    Scale.PAPER: dict.fromkeys(("ibp", "wong", "adversarial"), ("0.1", "0.2", "0.3", "0.4")),
}
PANELS = (
    ("verified", "wong", "proved"),
    ("pgd", "wong", "survives PGD"),
    ("pgd", "adversarial", "survives PGD"),
)
STYLES = {"small": "-", "medium": "--", "large": ":"}


@dataclass(frozen=True, eq=False)
class _Curve:
    method: str
    net: str
    radius: str
    training: Training
    check: Check


def _radii(scale: Scale) -> tuple[Fraction, ...]:
    step, count = (Fraction(3, 20), 4) if scale is Scale.SMOKE else (Fraction(1, 20), 10)
    return tuple(step * i for i in range(count))


def _cascade(scale: Scale, method: str) -> Cascade:
    if scale is Scale.PAPER:
        return scale.complete
    if scale is Scale.LAPTOP and method == "wong":
        # Intervals prove nothing of a network that was not trained for them.
        attack = PgdAttack(steps=40, restarts=2)
        return Cascade("curve-wong", (Clean(), IntervalBounds(), attack, CrownBounds("crown")))
    attack = PgdAttack(steps=5, restarts=1) if scale is Scale.SMOKE else PgdAttack(steps=40, restarts=2)
    bounds = () if scale is Scale.SMOKE else (CrownBounds("crown-ibp"),)
    return Cascade("curve", (Clean(), IntervalBounds(), *bounds, attack))


def _others(scale: Scale) -> str:
    if scale is not Scale.LAPTOP:
        return ""
    return " (of Wong et al. the linear bounds come last and have bounds of their own inside the network)"


def _curves(scale: Scale) -> list[_Curve]:
    found = []
    images = {Scale.SMOKE: 12, Scale.LAPTOP: 500, Scale.PAPER: None}[scale]
    for method, radii in TRAINED[scale].items():
        for net in scale.nets:
            for radius in radii:
                if known("mnist", net, method, radius):
                    run = scheduled(scale, "mnist", net, method, radius)
                    check = Check(run, _radii(scale), _cascade(scale, method), images)
                    found.append(_Curve(method, net, radius, run, check))
    return found


def plan(scale: Scale) -> WorkPlan:
    curves = _curves(scale)
    missing = [
        f"{METHODS[m]}: this version has no preset mnist-small-{m}"
        for m in TRAINED[scale]
        if m not in {c.method for c in curves}
    ]
    return WorkPlan(tuple(c.training for c in curves), tuple(c.check for c in curves), missing=tuple(missing))


def _accuracies(bench: Bench, curve: _Curve, key: str) -> list[float]:
    found = summary_of(bench, curve.check)
    return [
        100 * (1 - (s.verified_error if key == "verified" else s.pgd_error))
        for s in (found[str(eps)] for eps in curve.check.radii)
    ]


def _picture(bench: Bench, scale: Scale, curves: list[_Curve]) -> Figure:
    values = {(c.training.name, key): _accuracies(bench, c, key) for c in curves for key in ("verified", "pgd")}
    eps = [float(radius) for radius in _radii(scale)]

    def panel(axes: Axes, key: str, rival: str) -> None:
        for colour, method in zip((SERIES[1], SERIES[0]), (rival, "ibp"), strict=True):
            for net in scale.nets:
                group = [c for c in curves if (c.method, c.net) == (method, net)]
                lines = [values[(c.training.name, key)] for c in group]
                for line in lines:
                    axes.plot(eps, line, STYLES[net], color=colour, alpha=0.3, linewidth=1)
                if lines:
                    best = [max(column) for column in zip(*lines, strict=True)]
                    axes.plot(eps, best, STYLES[net], color=colour, linewidth=2.4, label=f"{METHODS[method]}, {net}")
        axes.set_xlabel("ε")
        axes.set_ylim(0, 101)
        axes.margins(x=0.01)
        axes.grid()
        axes.legend(loc="lower left")

    def draw(canvas: Canvas) -> None:
        for axes, (key, rival, name) in zip(canvas.subplots(1, 3, sharey=True), PANELS, strict=True):
            panel(axes, key, rival)
            axes.set_title(f"({'abc'[PANELS.index((key, rival, name))]}) {name}: IBP and {METHODS[rival]}")
        canvas.axes[0].set_ylabel("test images, %")

    return Figure(
        "figure-3",
        "Verified and attacked accuracy by radius for IBP, Wong et al. and Madry et al.",
        draw,
        (10.5, 3.4),
        "Faded: networks trained for one radius. Bold: the best of them at each radius.",
    )


def draw(bench: Bench, scale: Scale) -> Drawn:
    curves = _curves(scale)
    rows: list[tuple[Cell, ...]] = []
    for c in curves:
        proved, alive = _accuracies(bench, c, "verified"), _accuracies(bench, c, "pgd")
        for eps, p, a in zip(c.check.radii, proved, alive, strict=True):
            trained_as = METHODS[c.method], c.net, c.radius, c.training.schedule
            rows.append((*trained_as, radius_text(eps), points(a), points(p)))
    columns = ("method", "network", "ε train", "schedule", "ε", "survives PGD", "proved")
    images = curves[0].check.images
    notes = notes_at(
        scale,
        f"{'All' if images is None else f'The first {images:,}'} test images; "
        f"stages: {', '.join(_cascade(scale, 'ibp').names)}{_others(scale)}. The paper's verified curves are by MIP.",
        shortened([c.training for c in curves]),
        *plan(scale).missing,
    )
    table = Table("figure-3", columns, tuple(rows), "Accuracy by radius", notes)
    numbers = tuple(
        number(bench, c.training, figure="figure-3", radii=[str(r) for r in c.check.radii],
               proved=_accuracies(bench, c, "verified"), pgd=_accuracies(bench, c, "pgd"))
        for c in curves
    )  # fmt: skip
    best = max((r for r in rows if r[0] == "IBP" and r[4] == "0.3"), key=lambda r: float(str(r[6]).split()[0]))
    return Drawn(
        (table, trained(bench, [c.training for c in curves])),
        (_picture(bench, scale, curves),),
        f"At ε = 0.3 the best IBP network (trained for {best[2]}) is proved robust on {best[6]} of the images.",
        numbers=numbers,
    )


ARTEFACT = Artefact("figure-3", "accuracy-vs-epsilon", "Accuracy by radius", plan, draw)
