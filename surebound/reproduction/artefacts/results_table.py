"""What tables 2, 4 and 6 share: networks, verified at radii, our errors beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from surebound.report.table import Cell, Table
from surebound.report.verdicts import radius_text
from surebound.reproduction.artefacts.base import (
    QUOTED,
    Artefact,
    Drawn,
    difference,
    notes_at,
    number,
    points,
    shortened,
    summary_of,
    trained,
)
from surebound.reproduction.artefacts.paper import DATA, METHODS, Row
from surebound.reproduction.bench import Bench
from surebound.reproduction.scale import Scale, fakes, known, training
from surebound.reproduction.work import Check, Training, WorkPlan

# Steps (and batch) at laptop scale; None keeps the paper's schedule.
LAPTOP: dict[tuple[str, str], tuple[int | None, int | None]] = {
    ("mnist", "ibp"): (None, None),
    ("mnist", "nominal"): (None, None),
    ("mnist", "adversarial"): (None, None),
    ("mnist", "wong"): (4_000, 50),
    ("cifar10", "ibp"): (6_000, 100),
    ("svhn", "ibp"): (6_000, 100),
}
VERIFIABLE = ("ibp", "bn-ibp", "wong", "crown-ibp")


def scheduled(scale: Scale, data: str, net: str, method: str, radius: str) -> Training:
    """A preset's run at a scale, at laptop scale on the schedule of LAPTOP."""
    steps, batch = LAPTOP.get((data, method), (None, None))
    return training(scale, data, net, method, radius, laptop_steps=steps, laptop_batch=batch)


@dataclass(frozen=True, eq=False)
class Line:
    """A row of the paper with the network that answers it here, if one does."""

    row: Row
    training: Training | None = None
    check: Check | None = None
    why_not: str = ""


def lines(rows: Iterable[Row], scale: Scale, chosen_net: str = "small") -> list[Line]:
    """Which network answers which row at a scale."""
    return [_line(row, scale, row.net or chosen_net) for row in rows]


def _line(row: Row, scale: Scale, net: str) -> Line:
    if row.quoted:
        return Line(row)
    radius = "" if row.method == "nominal" else row.eps_train
    if not known(row.data, net, row.method, radius):
        return Line(row, why_not=f"no preset {row.data}-{net}-{row.method} in this version")
    if net not in scale.nets:
        return Line(row, why_not=f"{_name(row, net)}: not trained at scale {scale}")
    costly = row.method == "wong" and row.eps_train != "0.1"
    if scale is Scale.LAPTOP and (costly or (row.data, row.method) not in LAPTOP):
        return Line(row, why_not=f"{_name(row, net)}: not trained at scale {scale}")
    found = scheduled(scale, row.data, net, row.method, radius)
    cascade = scale.complete_for(row.method) if row.method in VERIFIABLE else scale.attacked
    return Line(row, found, Check(found, (row.eps,), cascade, scale.images))


def _name(row: Row, net: str) -> str:
    """`CIFAR-10, large, Madry et al., trained for 8/255`."""
    trained_for = f", trained for {row.eps_train.replace('-', '/')}" if row.eps_train else ""
    return f"{DATA[row.data]}, {net}, {METHODS[row.method]}{trained_for}"


def smoke_part(rows: Sequence[Row], scale: Scale) -> Sequence[Row]:
    """At scale smoke only rows that exercise something new: one radius a dataset, two methods."""
    if scale is not Scale.SMOKE:
        return rows
    first = {row.data: row.radius for row in reversed(rows) if not row.quoted}
    return [r for r in rows if r.radius == first.get(r.data) and (r.quoted or r.method in ("nominal", "ibp"))]


def plan_of(found: Sequence[Line], scale: Scale) -> WorkPlan:
    """The work behind the lines; equal runs once, radii of one network together."""
    trainings = {line.training.name: line.training for line in found if line.training is not None}
    radii: dict[tuple[str, str], set[Fraction]] = {}
    checks: dict[tuple[str, str], Check] = {}
    for line in found:
        if line.check is not None:
            key = line.check.network.name, line.check.cascade.name
            radii.setdefault(key, set()).update(line.check.radii)
            checks[key] = line.check
    merged = tuple(Check(c.network, tuple(sorted(radii[key])), c.cascade, c.images) for key, c in checks.items())
    missing = tuple(dict.fromkeys(line.why_not for line in found if line.why_not))
    data = sorted({line.row.data for line in found if line.training is not None})
    return WorkPlan(tuple(trainings.values()), merged, missing=missing, fake=fakes(scale, *data))


def check_for(plan: WorkPlan, line: Line) -> Check | None:
    """The merged check that covers a line."""
    if line.check is None:
        return None
    wanted = line.check.network.name, line.check.cascade.name
    return next(c for c in plan.checks if (c.network.name, c.cascade.name) == wanted)


COLUMNS = (
    "data", "ε", "method", "clean", "paper", "Δ", "PGD", "paper ", "Δ ", "verified", "paper  ", "Δ  ",
    "schedule (steps × batch)",
)  # fmt: skip


def draw_lines(bench: Bench, scale: Scale, found: Sequence[Line], name: str, caption: str) -> Drawn:
    """The table with ours, the paper's and the difference, quoted rows marked."""
    plan, rows, numbers = plan_of(found, scale), list[tuple[Cell, ...]](), []
    cache = {id(check): summary_of(bench, check) for check in plan.checks}
    for line in found:
        row, check = line.row, check_for(plan, line)
        values: tuple[float | None, float | None, float | None] = (None, None, None)
        if check is not None and line.training is not None:
            s = cache[id(check)][str(row.eps)]
            verified = 100 * s.verified_error if row.method in VERIFIABLE else None
            values = 100 * s.clean_error, 100 * s.pgd_error, verified
            numbers.append(
                number(bench, line.training, table=name, data=row.data, method=row.method, eps=str(row.eps),
                       images=s.total, clean=values[0], pgd=values[1], verified=values[2], paper=row.verified,
                       cascade=check.cascade.key)
            )  # fmt: skip
        rows.append(_cells(line, values))
    trainings = list(plan.trainings)
    notes = notes_at(
        scale,
        "Errors in percent; Δ is ours minus the paper's, in points. The paper takes the best of three networks and "
        "several radii; ours are the small network unless a row says otherwise. "
        f"“{QUOTED}” rows are results of others that the paper quotes; nobody ran them again.",
        _images_note(scale, numbers),
        shortened(trainings),
        *plan.missing,
    )
    table = Table(name, COLUMNS, tuple(rows), caption, notes)
    return Drawn((table, trained(bench, trainings)), headline=_headline(numbers), numbers=tuple(numbers))


def results_artefact(
    name: str, alias: str, title: str, caption: str, lines_at: Callable[[Scale], list[Line]]
) -> Artefact:
    """A table of lines."""
    return Artefact(
        name,
        alias,
        title,
        lambda scale: plan_of(lines_at(scale), scale),
        lambda bench, scale: draw_lines(bench, scale, lines_at(scale), name, caption),
    )


def _cells(line: Line, values: tuple[float | None, float | None, float | None]) -> tuple[Cell, ...]:
    row = line.row
    method = METHODS.get(row.method, row.method)
    extra = [row.net] if row.net else []
    extra += [f"ε train {row.eps_train.replace('-', '/')}"] if row.eps_train else []
    label = f"{method} ({', '.join(extra)})" if extra else method
    schedule = QUOTED if row.quoted else line.training.schedule if line.training else "paper only"
    cells: list[Cell] = [DATA[row.data], radius_text(row.eps), label]
    for ours, paper in zip(values, (row.clean, row.pgd, row.verified), strict=True):
        cells += [points(ours), points(paper), difference(ours, paper)]
    return (*cells, schedule)


def _images_note(scale: Scale, numbers: Sequence[dict[str, object]]) -> str:
    counts = sorted({int(str(n["images"])) for n in numbers})
    if not counts or scale is not Scale.LAPTOP:
        return ""
    return (
        f"Ours are measured on the first {counts[-1]:,} test images; one image is {100 / counts[-1]:.2g} points. "
        "Verification: interval bounds, CROWN, PGD 200 x 10, then branch and bound for 30 s an image instead of "
        "MIP for ten minutes and LP."
    )


def _headline(numbers: Sequence[dict[str, Any]]) -> str:
    """Our verified errors beside the paper's, the largest radius of each dataset first."""
    proved = [n for n in numbers if n["method"] == "ibp" and n["verified"] is not None]
    if not proved:
        return "No network of this table was verified at this scale."
    last = {n["data"]: n for n in proved}
    told = [
        f"{DATA[data]} at {radius_text(Fraction(n['eps']))} {n['verified']:.2f} % (paper {n['paper']:.2f} %)"
        for data, n in last.items()
    ]
    return f"Verified error of IBP: {', '.join(told)}"
