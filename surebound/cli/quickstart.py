"""`surebound quickstart`: the point of the field in one table and one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.output import Cell, print_table

CONCLUSION = """
The better classifier of the two is the one about which nothing can be proved. It may be robust all the same:
the truth lies between the last two columns. Networks trained with their bounds close that gap."""


def register(app: typer.Typer) -> None:
    app.command("quickstart")(quickstart)


def quickstart(
    out: Annotated[Path, typer.Option("--out", help="Directory for the picture.")] = Path("runs/quickstart"),
) -> None:
    """Bound two small networks on the embedded digits, print a table and draw the picture.

    Takes a few seconds and needs no download. Nothing is trained: the weights are solved for in closed form.

    Example:  surebound quickstart --out runs/quickstart
    """
    from surebound.experiment import quickstart as demonstration
    from surebound.experiment.quickstart_figure import draw

    result = demonstration.run()
    eps = demonstration.SHOWN
    rows: list[list[Cell]] = []
    for curve in result.curves:
        attacked, proved = curve.at(eps)
        rows.append(
            [curve.name, *(f"{100 * value:.1f} %" for value in (curve.attacked[0], attacked, proved))]
        )
    print_table(("network", "accuracy", f"survives an attack, eps {eps}", f"proved robust, eps {eps}"), rows)
    path = out / "quickstart.png"
    draw(result, path)
    typer.echo(CONCLUSION + f"\n\npicture: {path}")
