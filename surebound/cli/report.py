"""`surebound report`: one page for any set of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.notes import note
from surebound.cli.options import DataDir, Device, refuse_device


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run directories, results of `surebound verify`, or folders of them.", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page (default: report.html in the first of the directories).")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Also write every figure as PDF, SVG and PNG and every table as Markdown, CSV and LaTeX there."
        ),
    ] = None,
    data_dir: DataDir = None,
    explore: Annotated[
        bool,
        typer.Option("--explore", help="Also write the explorer of each verified run, as one file beside the page."),
    ] = False,
    title: Annotated[str, typer.Option(help="A title of your own for the page.")] = "",
    device: Device = None,
) -> None:
    """Write one self-contained HTML page about training runs and verifications.

    It answers first: how many images are proved. Then come curves, counterexamples with their perturbations, the
    hardest images, times, provenance and the commands to do it again. It opens without a network.

    Examples:

      surebound report runs/mnist-small

      surebound report runs/nominal runs/ibp --out comparison.html --figures figures

      surebound report runs/digits --explore
    """
    from surebound.report.build import Story, make_report

    refuse_device(device, "pages are made of stored results, and explorers computed,")
    path = out or (runs[0] if runs[0].is_dir() else runs[0].parent) / "report.html"
    made = make_report(runs, data_dir=data_dir, story=Story(title=title))
    written = made.write(path, figures)
    typer.echo(f"page: {path}")
    if explore:
        _explorers(runs, path, data_dir)
    if figures is not None:
        typer.echo(f"figures and tables: {len(written) - 1} files in {figures}")


def _explorers(paths: list[Path], page: Path, data_dir: Path | None) -> None:
    """Write an explorer for every run that has verdicts."""
    from surebound.cli.bar import Bar
    from surebound.report.charts import slug
    from surebound.report.explore.page import write_explorer
    from surebound.report.explore.subject import open_subject
    from surebound.report.source import read_runs

    verified = [run for run in read_runs(paths) if run.records]
    if not verified:
        note("no run has verdicts, so there is nothing to explore; `surebound verify` makes some")
    for run in verified:
        place = page.with_name("explore.html" if len(verified) == 1 else f"explore-{slug(run.name)}.html")
        with Bar("bounding", "no explorer was written") as bar:
            write_explorer(open_subject(run.path, data_dir=data_dir), place, progress=bar.show)
        typer.echo(f"explorer: {place}")
