"""The appendix on run time: cost per epoch of each method as a ratio to ordinary training."""

from __future__ import annotations

from surebound.experiment.config import Config
from surebound.experiment.presets import preset
from surebound.experiment.reproduce.bench import Bench
from surebound.experiment.reproduce.runtime import epochs
from surebound.experiment.reproduce.scale import Scale, known
from surebound.experiment.reproduce.work import Compute, Plan
from surebound.report.artefacts.base import SMOKE_NOTE, Artefact, Drawn, computed, difference
from surebound.report.artefacts.paper import METHODS, RUNTIME
from surebound.report.table import Cell, Table


def _configs(scale: Scale) -> dict[str, Config]:
    if scale is Scale.SMOKE:
        return {m: preset(f"digits-{m}") for m in ("nominal", "ibp", "adversarial")}
    found = {}
    for method in RUNTIME:
        radius = "" if method == "nominal" else "0.1"
        if known("mnist", "small", method, radius):
            found[method] = preset("-".join(p for p in ("mnist", "small", method, radius) if p))
    return found


def _work(scale: Scale) -> Compute:
    configs = _configs(scale)
    rounds, seconds = (1, 0.05) if scale is Scale.SMOKE else (5, 3.0)
    return Compute(
        "runtime",
        (scale.value, *configs, rounds, seconds),
        lambda bench: epochs(configs, rounds=rounds, seconds=seconds),
        len(configs) * rounds * (seconds + 1.5),
    )


def plan(scale: Scale) -> Plan:
    missing = tuple(
        f"{METHODS[m]}: this version has no preset mnist-small-{m}"
        for m in RUNTIME
        if m not in _configs(scale) and scale is not Scale.SMOKE
    )
    return Plan(computations=(_work(scale),), missing=missing)


def draw(bench: Bench, scale: Scale) -> Drawn:
    values = bench.values(_work(scale))
    seconds = {m: values["images"][m] / rate for m, rate in values["images_per_second"].items()}
    rows: list[tuple[Cell, ...]] = []
    for method, theirs in RUNTIME.items():
        mine = seconds.get(method)
        ratio = None if mine is None else mine / seconds["nominal"]
        paper = theirs / RUNTIME["nominal"]
        rows.append(
            (METHODS[method], None if mine is None else f"{mine:.2f}", None if ratio is None else f"{ratio:.2f}",
             f"{theirs:g}", f"{paper:.2f}", difference(ratio, paper))
        )  # fmt: skip
    columns = (
        "method",
        "s per epoch",
        "ratio to nominal",
        "paper, s (Titan Xp)",
        "paper's ratio",
        "Δ of the ratio",
    )
    notes = (
        *((SMOKE_NOTE,) if scale is Scale.SMOKE else ()),
        f"Small network, MNIST shapes, {values['threads']} thread(s), initial weights, full radius, batches of 32 of "
        "random images; the methods took turns and the best round of each counts. Absolute seconds belong to this "
        "machine.",
        *plan(scale).missing,
    )
    table = Table("runtime", columns, tuple(rows), "Cost of an epoch", notes)
    ibp = seconds["ibp"] / seconds["nominal"]
    headline = f"An epoch of IBP costs {ibp:.1f} times one of ordinary training (paper: 2.3)."
    numbers = (computed(values, table="runtime", seconds_per_epoch=seconds, rounds=values["rounds"]),)
    return Drawn((table,), headline=headline, numbers=numbers)


ARTEFACT = Artefact("runtime", "cost", "Cost of an epoch", plan, draw)
