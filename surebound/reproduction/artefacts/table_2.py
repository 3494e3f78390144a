"""Table 2: downscaled ImageNet, a WideResNet-10-10, interval bounds only."""

from __future__ import annotations

from fractions import Fraction

from surebound.report.table import Cell, Table
from surebound.reproduction.artefacts.base import (
    Artefact,
    Drawn,
    difference,
    notes_at,
    number,
    points,
    summary_of,
    trained,
)
from surebound.reproduction.artefacts.paper import IMAGENET, METHODS
from surebound.reproduction.bench import Bench
from surebound.reproduction.scale import Scale, fakes, training
from surebound.reproduction.work import Check, Training, WorkPlan

EPS = Fraction(1, 255)


def _networks(scale: Scale) -> dict[str, Training]:
    methods = ("ibp",) if scale is Scale.SMOKE else tuple(IMAGENET)
    if scale is Scale.LAPTOP:
        return {}
    return {m: training(scale, "imagenet64", "wrn-10-10", m, "" if m == "nominal" else "1-255") for m in methods}


def _check(network: Training, scale: Scale) -> Check:
    if scale is Scale.SMOKE:
        return Check(network, (EPS,), scale.bounded, 2)
    return Check(network, (EPS,), scale.attacked, 10_000)


def plan(scale: Scale) -> WorkPlan:
    found = _networks(scale)
    missing = () if found else ("Laptop scale trains nothing here: the data need their publisher's consent.",)
    checks = tuple(_check(network, scale) for network in found.values())
    return WorkPlan(tuple(found.values()), checks, missing=missing, fake=fakes(scale, "imagenet64"))


def draw(bench: Bench, scale: Scale) -> Drawn:
    found, rows, numbers = _networks(scale), list[tuple[Cell, ...]](), []
    for method, (clean, pgd, verified) in IMAGENET.items():
        ours: tuple[float | None, ...] = (None, None, None)
        if method in found:
            s = summary_of(bench, _check(found[method], scale))[str(EPS)]
            attacked = None if scale is Scale.SMOKE else 100 * s.pgd_error
            proved = 100 * s.verified_error if method == "ibp" else None
            ours = (100 * s.clean_error, attacked, proved)
            numbers.append(number(bench, found[method], table="table-2", eps=str(EPS), errors=list(ours)))
        cells: list[Cell] = [METHODS[method], found[method].schedule if method in found else "paper only"]
        for mine, paper in zip(ours, (clean, pgd, verified), strict=True):
            cells += [points(mine), points(paper), difference(mine, paper)]
        rows.append(tuple(cells))
    columns = (
        "method", "schedule", "test error", "paper", "Δ", "PGD error", "paper ", "Δ ", "verified error", "paper  ",
        "Δ  ",
    )  # fmt: skip
    notes = notes_at(
        scale,
        "Smoke trains the small network instead." if scale is Scale.SMOKE else "",
        "A WideResNet-10-10 on 56 x 56 crops, 1000 classes, ε = 1/255; verified by interval bounds only, as in the "
        "paper. At scale paper start it in several processes: torchrun --nproc-per-node 8 -m surebound train "
        "imagenet64-wrn-10-10-ibp-1-255, then hand the run to this command with --reuse.",
    )
    table = Table("table-2", columns, tuple(rows), "Downscaled ImageNet", notes)
    extra = (trained(bench, found.values()),) if found else ()
    headline = "The official files are needed for numbers; smoke trains on generated ones in their format."
    return Drawn((table, *extra), headline=headline, numbers=tuple(numbers))


ARTEFACT = Artefact("table-2", "imagenet", "Downscaled ImageNet", plan, draw)
