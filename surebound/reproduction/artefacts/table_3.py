"""Table 3: how tight interval bounds are on networks that were trained with them."""

from __future__ import annotations

from surebound.report.table import Cell, Table
from surebound.report.verdicts import radius_text
from surebound.reproduction.artefacts.base import (
    Artefact,
    Drawn,
    difference,
    notes_at,
    number,
    points,
    shortened,
    trained,
)
from surebound.reproduction.artefacts.paper import DATA, STATE_OF_THE_ART, TIGHTNESS
from surebound.reproduction.artefacts.results_table import Line, check_for, lines, plan_of
from surebound.reproduction.artefacts.table_4 import best_net
from surebound.reproduction.bench import Bench
from surebound.reproduction.scale import Scale
from surebound.reproduction.work import WorkPlan
from surebound.verdict import Status


def _lines(scale: Scale) -> list[Line]:
    """The IBP rows of table 4: the models are the same."""
    rows = [row for row in STATE_OF_THE_ART if row.method == "ibp"]
    if scale is Scale.SMOKE:
        rows = [row for row in rows if (row.data, row.radius) in (("mnist", "0.1"), ("cifar10", "2-255"))]
    return [line for row in rows for line in lines([row], scale, best_net(row, scale))]


def plan(scale: Scale) -> WorkPlan:
    return plan_of(_lines(scale), scale)


def draw(bench: Bench, scale: Scale) -> Drawn:
    work, rows, numbers, gaps = plan(scale), list[tuple[Cell, ...]](), [], []
    paper = {(data, radius): (ibp, mip) for data, radius, ibp, mip in TIGHTNESS}
    for line in _lines(scale):
        check = check_for(work, line)
        if check is None or line.training is None:
            continue
        records = [r for r in bench.records(check) if r.eps == line.row.eps]
        robust = [r for r in records if r.verdict.status is Status.ROBUST]
        by_interval = sum(r.verdict.stage == "interval" for r in robust)
        ibp = 100 * (1 - by_interval / len(records))
        cascade = 100 * (1 - len(robust) / len(records))
        gaps.append(ibp - cascade)
        theirs = paper[(line.row.data, line.row.radius)]
        rows.append(
            (DATA[line.row.data], radius_text(line.row.eps), line.training.schedule, points(ibp), points(theirs[0]),
             points(cascade), points(theirs[1]), f"{ibp - cascade:.2f}", f"{theirs[0] - theirs[1]:.2f}",
             difference(ibp - cascade, theirs[0] - theirs[1]))
        )  # fmt: skip
        numbers.append(
            number(bench, line.training, table="table-3", eps=str(line.row.eps), images=len(records), ibp=ibp,
                   complete=cascade)
        )  # fmt: skip
    columns = (
        "data", "ε", "schedule", "IBP bound", "paper", "complete", "paper ", "gap", "paper  ", "Δ of the gap",
    )  # fmt: skip
    notes = notes_at(
        scale,
        "Errors in percent. “complete” is what remains after the cascade (laptop: CROWN and branch and bound, 30 s an "
        "image; paper: MIP for ten minutes, then LP).",
        shortened(list(work.trainings)),
        *work.missing,
    )
    table = Table("table-3", columns, tuple(rows), "Tightness of interval bounds", notes)
    headline = (
        f"Interval bounds alone leave {min(gaps):.2f} to {max(gaps):.2f} points more open than the complete search."
        if gaps
        else ""
    )
    return Drawn((table, trained(bench, work.trainings)), headline=headline, numbers=tuple(numbers))


ARTEFACT = Artefact("table-3", "tightness", "Tightness of interval bounds", plan, draw)
