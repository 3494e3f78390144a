"""Figure 5: median and quartiles of clean and PGD accuracy over independently trained networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from surebound.experiment.metrics import read_metrics
from surebound.report.figure import SERIES, Figure
from surebound.reproduction.artefacts.base import Artefact, Drawn, notes_at, number, shortened, trained
from surebound.reproduction.artefacts.paper import METHODS
from surebound.reproduction.artefacts.table_5 import quartiles, shortened_run
from surebound.reproduction.bench import Bench
from surebound.reproduction.scale import Scale
from surebound.reproduction.work import Training, WorkPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

EPS = "3/10"


def _runs(scale: Scale) -> dict[str, list[Training]]:
    net = "large" if scale is Scale.PAPER else "small"
    return {
        method: [shortened_run(scale, net, method, seed) for seed in scale.seeds(2, 3, 10)]
        for method in ("ibp", "adversarial")
    }


def plan(scale: Scale) -> WorkPlan:
    return WorkPlan(tuple(run for runs in _runs(scale).values() for run in runs))


Band = list[tuple[int, float, float, float]]  # step, median, quartiles


def _bands(bench: Bench, runs: list[Training]) -> dict[str, Band]:
    """`clean` and `pgd` accuracy: step by step over the runs."""
    found: dict[str, dict[int, list[float]]] = {"clean": {}, "pgd": {}}
    for run in runs:
        where = bench.where(run)
        if where is None or not (Path(where) / "metrics.jsonl").is_file():
            continue  # a packaged network keeps no curve
        for m in read_metrics(Path(where) / "metrics.jsonl"):
            if m.get("kind") == "evaluation" and EPS in m.get("pgd_error", {}):
                found["clean"].setdefault(m["step"], []).append(100 * (1 - m["clean_error"]))
                found["pgd"].setdefault(m["step"], []).append(100 * (1 - m["pgd_error"][EPS]))
    return {key: [(step, *quartiles(values)) for step, values in sorted(steps.items())] for key, steps in found.items()}


def draw(bench: Bench, scale: Scale) -> Drawn:
    runs = _runs(scale)
    bands = {method: _bands(bench, group) for method, group in runs.items()}

    def paint(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        for (method, found), colour in zip(bands.items(), SERIES, strict=False):
            for key, style in (("clean", "--"), ("pgd", "-")):
                band = found[key]
                steps = [b[0] for b in band]
                axes.fill_between(
                    steps, [b[2] for b in band], [b[3] for b in band], color=colour, alpha=0.18, linewidth=0
                )
                name = "no attack" if key == "clean" else "PGD, ε = 0.3"
                axes.plot(steps, [b[1] for b in band], style, color=colour, label=f"{METHODS[method]}, {name}")
        axes.set_xlabel("training step")
        axes.set_ylabel("accuracy, %")
        axes.set_ylim(top=101)
        axes.margins(x=0.01)
        axes.grid()
        axes.legend(loc="lower right")

    count = len(runs["ibp"])
    figure = Figure(
        "figure-5",
        "Median clean and PGD accuracy during training, with quartiles",
        paint,
        (6.2, 3.4),
        f"Medians over {count} seeds; shaded: the quartiles.",
    )
    every = [run for group in runs.values() for run in group]
    notes = notes_at(
        scale,
        "Measured during training on held-out images: the first 1,000 without attack, the first 200 with 20 steps of "
        "PGD. The paper shows ten large networks; laptop scale has three small ones, trained for ε = 0.4.",
        shortened(every),
    )
    finals = {m: b["pgd"][-1][1] for m, b in bands.items() if b["pgd"]}
    headline = "PGD accuracy at ε = 0.3 at the end: " + ", ".join(f"{METHODS[m]} {v:.1f} %" for m, v in finals.items())
    numbers = tuple(number(bench, run, figure="figure-5") for run in every)
    return Drawn((trained(bench, every),), (figure,), headline + ".", notes, numbers)


ARTEFACT = Artefact("figure-5", "training-curves", "Training curves over seeds", plan, draw)
