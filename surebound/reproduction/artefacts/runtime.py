"""The appendix on run time: cost per epoch of each method as a ratio to ordinary training."""

from __future__ import annotations

from surebound.experiment.config import Config
from surebound.experiment.presets import preset
from surebound.report.table import Cell, Table
from surebound.reproduction.artefacts.base import Artefact, Drawn, computed, difference, notes_at
from surebound.reproduction.artefacts.paper import METHODS, RUNTIME
from surebound.reproduction.bench import Bench
from surebound.reproduction.runtime import epochs
from surebound.reproduction.scale import Scale, known, preset_name
from surebound.reproduction.work import Compute, WorkPlan


def _configs(scale: Scale) -> dict[str, Config]:
    if scale is Scale.SMOKE:
        return {m: preset(f"digits-{m}") for m in ("nominal", "ibp", "adversarial")}
    found = {}
    for method in RUNTIME:
        radius = "" if method == "nominal" else "0.1"
        if known("mnist", "small", method, radius):
            found[method] = preset(preset_name("mnist", "small", method, radius))
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


def plan(scale: Scale) -> WorkPlan:
    missing = tuple(
        f"{METHODS[m]}: this version has no preset mnist-small-{m}"
        for m in RUNTIME
        if m not in _configs(scale) and scale is not Scale.SMOKE
    )
    return WorkPlan(computations=(_work(scale),), missing=missing)


def ratios(rounds: dict[str, list[float]], method: str) -> tuple[float, float]:
    """The smallest and the largest ratio to ordinary training of one round: how far to trust the best ones.

    >>> ratios({"nominal": [4.0, 6.0], "ibp": [2.0, 2.0]}, "ibp")
    (2.0, 3.0)
    """
    found = [n / m for n, m in zip(rounds["nominal"], rounds[method], strict=True)]
    return min(found), max(found)


def draw(bench: Bench, scale: Scale) -> Drawn:
    values = bench.values(_work(scale))
    rounds = values["rounds"]
    seconds = {m: values["images"][m] / rate for m, rate in values["images_per_second"].items()}
    rows: list[tuple[Cell, ...]] = []
    for method, theirs in RUNTIME.items():
        mine = seconds.get(method)
        ratio = None if mine is None else mine / seconds["nominal"]
        spread = "–" if mine is None else "{:.2f} to {:.2f}".format(*ratios(rounds, method))
        paper = theirs / RUNTIME["nominal"]
        rows.append(
            (METHODS[method], None if mine is None else f"{mine:.2f}", None if ratio is None else f"{ratio:.2f}",
             spread, f"{theirs:g}", f"{paper:.2f}", difference(ratio, paper))
        )  # fmt: skip
    columns = (
        "method", "s per epoch", "ratio to nominal", "ratio in single rounds", "paper, s (Titan Xp)",
        "paper's ratio", "Δ of the ratio",
    )  # fmt: skip
    low, high = ratios(rounds, "ibp")
    steady = high <= 1.25 * low
    notes = notes_at(
        scale,
        f"Small network, MNIST shapes, {values['threads']} thread(s), initial weights, full radius, batches of 32 of "
        f"random images; the methods took turns over {len(rounds['nominal'])} rounds and the best of each counts. "
        "Absolute seconds belong to this machine.",
        ""
        if steady
        else "The machine was busy: single rounds disagree by more than the difference to the paper; Δ says nothing. "
        "Measure again on an idle machine.",
        *plan(scale).missing,
    )
    table = Table("runtime", columns, tuple(rows), "Cost of an epoch", notes)
    best = seconds["ibp"] / seconds["nominal"]
    headline = (
        f"An epoch of IBP costs {best:.1f} times one of ordinary training, {low:.1f} to {high:.1f} in single rounds "
        "(paper: 2.3)."
    )
    numbers = (computed(values, table="runtime", seconds_per_epoch=seconds, rounds=rounds),)
    return Drawn((table,), headline=headline, numbers=numbers)


ARTEFACT = Artefact("runtime", "cost", "Cost of an epoch", plan, draw)
