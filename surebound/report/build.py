"""`write_report`: one page for any set of runs, and its figures and tables as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from surebound.report import page
from surebound.report.charts import accuracy_by_radius, slug, stage_times, training_curves
from surebound.report.figure import Figure
from surebound.report.gallery import Gallery, gallery
from surebound.report.headline import headline
from surebound.report.pictures import counterexamples
from surebound.report.provenance import asked, provenance, redo
from surebound.report.source import ReportedRun, certified, read_runs, records_json
from surebound.report.table import Table, write_text
from surebound.report.verdicts import overview, radius_text, shares, stage_table

MOST_ROWS = 60_000  # verdicts in the page's table; more would make it slow to open on a phone


@dataclass(frozen=True)
class Story:
    """What a caller adds to a report: a title of its own, some sentences, and drawings at the top."""

    title: str = ""
    lead: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    command: str = ""


@dataclass(frozen=True, eq=False)
class Report:
    """A page with the figures and tables that are on it."""

    html: str
    figures: tuple[Figure, ...] = field(default=())
    tables: tuple[Table, ...] = field(default=())

    def write(self, path: Path, figures: Path | None = None) -> list[Path]:
        """The page and, if asked for, every figure as PDF, SVG and PNG and every table as Markdown, CSV, LaTeX."""
        write_text(path, self.html)
        written = [path]
        if figures is not None:
            written += [path for figure in self.figures for path in figure.write(figures)]
            written += [path for table in self.tables for path in table.write(figures)]
        return written


def make_report(paths: Sequence[Path], *, data_dir: Path | None = None, story: Story | None = None) -> Report:
    """Read the runs and compose the page."""
    runs, story = read_runs(paths), story or Story()
    table, chart = overview(runs), accuracy_by_radius(runs)
    figures: list[Figure] = [*story.figures, *([chart] if chart else [])]
    tables: list[Table] = [*story.tables, *([table] if table.rows else [])]
    body = [_top(runs, story), *(f.html() for f in story.figures), *(t.html() for t in story.tables)]
    body += [chart.html() if chart else "", _folded(table)]
    for run in runs:
        section, own_figures, own_tables = _run_section(run, data_dir)
        body.append(section)
        figures += own_figures
        tables += own_tables
    body.append(_all_verdicts(runs))
    body += [page.heading("Do it again"), page.command(story.command or redo(runs))]
    title = story.title or headline(runs).plain
    return Report(page.page(title, body), tuple(figures), tuple(tables))


def _folded(table: Table) -> str:
    """A table as it is, or one to unfold if it is long and a chart says the same."""
    if not table.rows:
        return ""
    shown = table.html()
    return page.details(f"all {len(table.rows)} rows of numbers", shown) if len(table.rows) > 10 else shown


def _top(runs: Sequence[ReportedRun], story: Story) -> str:
    """The answer first, then what it is about."""
    found = headline(runs)
    parts = [page.paragraph(f"surebound report · {', '.join(run.name for run in runs[:4])}", "kicker")]
    if story.title:
        parts += [f"<h1>{page.esc(story.title)}</h1>", *(page.paragraph(text, "lead") for text in story.lead)]
        parts.append(f'<p class="lead">{found.html}</p>')
    else:
        parts.append(f"<h1>{found.html}</h1>")
    parts += [page.paragraph(text, "lead") for text in found.details]
    if found.run is not None and found.eps is not None:
        here = [r for r in found.run.records if r.eps == found.eps]
        parts.append(page.bar(shares(here)))
    return "\n".join(parts)


def _run_section(run: ReportedRun, data_dir: Path | None) -> tuple[str, list[Figure], list[Table]]:
    parts = [page.heading(run.name, anchor=slug(run.name)), page.facts(asked(run))]
    figures, tables = [], []
    if len(run.summaries) > 1:
        by_radius = {
            f"ε = {radius_text(s.eps)}": shares(r for r in run.records if r.eps == s.eps) for s in run.summaries
        }
        parts.append(page.bars(by_radius))
    curves = training_curves(run)
    if curves is not None:
        parts += [page.heading("Training", 3), curves.html()]
        figures.append(curves)
    found = gallery(run, data_dir)
    parts.append(_pictures(found))
    drawn = counterexamples(f"counterexamples-{slug(run.name)}", found.falsified)
    figures += [drawn] if drawn is not None else []
    times = stage_times(run)
    if times is not None:
        table = stage_table(run)
        table = Table(f"stages-{slug(run.name)}", table.columns, table.rows)
        parts += [page.heading("Where the time went", 3), times.html()]
        parts.append(page.details("what each stage settled", table.html()))
        figures.append(times)
        tables.append(table)
    parts += [page.heading("Provenance", 3), page.facts(provenance(run))]
    return "\n".join(parts), figures, tables


def _pictures(found: Gallery) -> str:
    broken = (
        "The image, what it was changed to, and the change (red brighter, blue darker); label → what the network reads "
        "instead. Each was run through the network again; the smallest radius comes first."
    )
    hard = "Undecided images first, then those that took longest, then the narrowest proofs; each image once."
    parts = []
    for title, note, pictures in (
        ("Counterexamples", broken, found.falsified),
        ("The hardest of the others", hard, found.hardest),
    ):
        if pictures:
            parts += [page.heading(title, 3), page.paragraph(note, "note"), page.tiles(pictures)]
    if found.note:
        parts.append(page.paragraph(found.note, "note"))
    return "\n".join(parts)


def _all_verdicts(runs: Sequence[ReportedRun]) -> str:
    total = sum(len(run.records) for run in runs)
    if not total:
        return ""
    parts = [page.heading("Every image")]
    if total > MOST_ROWS:
        command = f"`surebound results {runs[0].path}` lists and exports them"
        parts.append(page.paragraph(f"{total:,} verdicts are too many for a page; {command}."))
    else:
        proofs = [state for run in runs for state, _ in certified(run).values()]
        if proofs:
            done = proofs.count("checked")
            parts.append(
                page.paragraph(
                    f"{len(proofs):,} of {total:,} verdicts have a certificate; {done:,} of these are checked by "
                    "`surebound check`, which shares no code with the search."
                )
            )
        parts.append(page.records_section(records_json(runs), certificates=bool(proofs)))
    return "\n".join(parts)
