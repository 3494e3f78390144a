"""What an artefact is: a name, the work it needs at a scale, and how it is drawn from the finished work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from surebound.report.figure import Figure
from surebound.report.table import Cell, Table
from surebound.reproduction.bench import Bench
from surebound.reproduction.scale import Scale
from surebound.reproduction.work import Check, Network, Training, WorkPlan
from surebound.verify import Summary, summarise

QUOTED = "quoted"  # the mark of rows that the paper took from the literature: nobody ran them here or there
SMOKE_NOTE = (
    "Scale smoke: a few training steps on the embedded digits or on generated images. "
    "It shows that everything runs; the numbers mean nothing."
)


def notes_at(scale: Scale, *texts: str) -> tuple[str, ...]:
    """The notes that say something; before them at scale smoke that the numbers mean nothing."""
    return tuple(text for text in (SMOKE_NOTE if scale is Scale.SMOKE else "", *texts) if text)


@dataclass(frozen=True, eq=False)
class Drawn:
    """An artefact's parts; `headline` is one sentence that says what came out."""

    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    headline: str = ""
    notes: tuple[str, ...] = ()
    numbers: tuple[dict[str, Any], ...] = ()  # every number with seed, steps, commit and command


@dataclass(frozen=True, eq=False)
class Artefact:
    """A table or figure of the paper (Gowal et al. 2018)."""

    name: str  # table-4
    alias: str  # state-of-the-art
    title: str
    plan: Callable[[Scale], WorkPlan]
    draw: Callable[[Bench, Scale], Drawn]
    scales: dict[Scale, str] = field(default_factory=dict)  # what a scale means here, if it needs saying

    @property
    def names(self) -> tuple[str, str]:
        """Both names it can be asked for by."""
        return self.name, self.alias


def summary_of(bench: Bench, check: Check) -> dict[str, Summary]:
    """radius -> summary of a finished check."""
    records = bench.records(check)
    return {str(eps): summarise(r for r in records if r.eps == eps) for eps in check.radii}


def difference(ours: float | None, paper: float | None) -> str:
    """Ours minus the paper's, in points; both in percent.

    >>> difference(3.5, 3.0), difference(None, 3.0)
    ('+0.50', '–')
    """
    if ours is None or paper is None:
        return "–"
    return f"{ours - paper:+.2f}".replace("-", "−")


def points(value: float | None) -> str:
    """A percentage as the tables print it."""
    return "–" if value is None else f"{value:.2f} %"


def number(bench: Bench, network: Network, **values: Any) -> dict[str, Any]:
    """Values with what they rest on."""
    facts = bench.facts(network)
    facts.pop("results", None)
    schedule = {"schedule": network.schedule} if isinstance(network, Training) else {}
    return {**values, **facts, **schedule}


def computed(values: dict[str, Any], **found: Any) -> dict[str, Any]:
    """Values of a computation with the commit that made them."""
    origin = values.get("origin", {})
    return {**found, "seed": values.get("seed", 0), "commit": origin.get("commit"), "origin": origin}


def trained(bench: Bench, trainings: Iterable[Training]) -> Table:
    """The networks behind an artefact, with seed, schedule, commit and command."""
    rows: list[tuple[Cell, ...]] = []
    for training in trainings:
        facts = bench.facts(training)
        commit = str(facts["commit"] or "unknown")
        short = commit[:9] + ("+" if commit.endswith("+") else "")
        rows.append((facts["network"], training.schedule, facts["seed"], short, _command(facts["command"])))
    columns = ("network", "schedule", "seed", "commit", "command")
    return Table("networks", columns, tuple(dict.fromkeys(rows)), "Every network behind these numbers")


def _command(command: object) -> str:
    from surebound.experiment.publish import portable

    return portable(str(command)) if command else ""


def shortened(trainings: Sequence[Training]) -> str:
    """A sentence about schedules that are not the paper's; empty if all are."""
    short = [t for t in trainings if not t.full and t.paper_images is not None]
    if not short:
        return ""
    shares = sorted({100 * t.images / (t.paper_images or 1) for t in short})
    low, high = f"{shares[0]:.2g}", f"{shares[-1]:.2g}"
    span = f"{low} %" if low == high else f"{low} to {high} %"
    return (
        f"{len(short)} of {len(trainings)} networks here were trained on a shortened schedule, {span} of the "
        "images of the paper's; the schedule stands beside each number."
    )
