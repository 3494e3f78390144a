"""Counts of verdicts in the words and the order of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from surebound.report.source import ReportedRun
from surebound.report.table import Cell, Table, percent
from surebound.verdict import Status
from surebound.verify import Record, Summary


@dataclass(frozen=True)
class Share:
    """One part of the bar: how many images ended so."""

    key: str  # a colour of the page
    label: str
    count: int


def shares(records: Iterable[Record]) -> list[Share]:
    """proved, undecided, broken, wrong from the start: together all images."""
    rows = list(records)
    robust = sum(r.verdict.status is Status.ROBUST for r in rows)
    falsified = [r for r in rows if r.verdict.status is Status.FALSIFIED]
    wrong = sum(r.verdict.stage == "clean" for r in falsified)
    broken = len(falsified) - wrong
    parts = (
        ("proved", "proved robust", robust),
        ("open", "undecided", len(rows) - robust - len(falsified)),
        ("broken", "counterexample found", broken),
        ("wrong", "wrong without any change", wrong),
    )
    return [Share(*part) for part in parts]


def proved_share(summary: Summary) -> float:
    """Share of the images that are proved robust."""
    return 1 - summary.verified_error


def overview(runs: Sequence[ReportedRun]) -> Table:
    """Every run at every radius: accuracy, what survives the attacks, what is proved."""
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        for s in run.summaries:
            counts = dict(s.statuses)
            open_ = s.total - counts.get("robust", 0) - counts.get("falsified", 0)
            rows.append(
                (run.name, radius_text(s.eps), percent(proved_share(s)), percent(1 - s.float_sound_error),
                 percent(1 - s.falsified_error), percent(1 - s.pgd_error), percent(1 - s.clean_error), open_, s.total)
            )  # fmt: skip
        if not run.summaries and run.results:
            rows += _evaluated(run)
        elif not run.summaries:
            rows.append((run.name, *["–"] * 8))
    # What is proved comes first: a phone shows three or four columns.
    names = (
        "network", "ε", "proved", "proved, float32", "no counterexample", "survives PGD", "accuracy", "undecided",
        "images",
    )  # fmt: skip
    # Columns that say the same as their neighbour are left out: attacks found every counterexample, or every
    # proof holds in float32.
    redundant = {small for small, big in ((4, 5), (3, 2)) if all(row[small] in (row[big], "–") for row in rows)}
    kept = [i for i in range(len(names)) if i not in redundant]
    upper = names[5 if 4 in redundant else 4]
    return Table(
        "overview",
        tuple(names[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in rows),
        notes=(f"The true robust accuracy lies between “proved” and “{upper}”.",) if rows else (),
    )


def _evaluated(run: ReportedRun) -> list[tuple[Cell, ...]]:
    """Lines of a run that was only measured by interval bounds at the end of its training."""
    images, clean = run.results.get("images"), run.results.get("clean_error")
    attacked = run.evaluated("pgd_error") if run.results.get("pgd_images") == images else {}
    lines: list[tuple[Cell, ...]] = []
    for radius, error in run.evaluated("verified_error").items():
        survived = None if radius not in attacked else 1 - attacked[radius]
        proved = percent(1 - error)
        lines.append(
            (run.name, radius_text(radius), proved, proved, "–", percent(survived),
             percent(None if clean is None else 1 - clean), None, images)
        )  # fmt: skip
    return lines


def stage_table(run: ReportedRun) -> Table:
    """What each stage settled and how long it took, per radius."""
    rows: list[tuple[Cell, ...]] = []
    for summary in run.summaries:
        seconds = dict(summary.stage_seconds)
        names = list(dict.fromkeys([*seconds, *(stage for stage, _, _ in summary.stages)]))
        for stage in names:
            settled = {status: n for s, status, n in summary.stages if s == stage}
            rows.append(
                (radius_text(summary.eps), stage or "(none)", settled.get("robust", 0),
                 settled.get("falsified", 0), sum(settled.values()) - settled.get("robust", 0)
                 - settled.get("falsified", 0), round(seconds.get(stage, 0.0), 2))
            )  # fmt: skip
    columns = ("ε", "stage", "proved", "falsified", "left open", "seconds")
    return Table("stages", columns, tuple(rows))


_WORDS = {
    "clean": "the network's own prediction", "interval": "interval bounds", "crown": "CROWN bounds",
    "pgd": "PGD", "multi-targeted": "multi-targeted PGD", "branch-and-bound": "branch and bound",
    "mip": "integer programming", "lp": "linear programming",
}  # fmt: skip


def in_words(stage: str) -> str:
    """A stage's name for people; one that is not ours keeps its own."""
    return _WORDS.get(stage, stage)


def radius_text(radius: Fraction) -> str:
    """A radius as people write it: short decimals as decimals, the rest as fractions.

    >>> radius_text(Fraction(2, 5)), radius_text(Fraction(8, 255)), radius_text(Fraction(0))
    ('0.4', '8/255', '0')
    """
    decimal = f"{float(radius):.4g}"
    return decimal if Fraction(decimal) == radius else str(radius)
