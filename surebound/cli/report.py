"""`surebound report`: one page for any set of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.options import DataDir


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
    title: Annotated[str, typer.Option(help="A title of your own for the page.")] = "",
) -> None:
    """Write one self-contained HTML page about training runs and verifications.

    It answers first: how many images are proved. Then come curves, counterexamples with their perturbations, the
    hardest images, times, provenance and the commands to do it again. It opens without a network.

    Examples:

      surebound report runs/mnist-small

      surebound report runs/nominal runs/ibp --out comparison.html --figures figures
    """
    from surebound.report.build import Story, make_report

    path = out or (runs[0] if runs[0].is_dir() else runs[0].parent) / "report.html"
    made = make_report(runs, data_dir=data_dir, story=Story(title=title))
    written = made.write(path, figures)
    typer.echo(f"page: {path}")
    if figures is not None:
        typer.echo(f"figures and tables: {len(written) - 1} files in {figures}")
