"""`surebound quickstart`: the point of the field in one table and one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.options import Device
from surebound.cli.output import Cell, print_table, print_text

TITLE = "How much of a network's accuracy can be proved?"
LEAD = "Two networks of the same shape on scikit-learn's 8x8 digits, the second one trained with interval bounds."
CONCLUSION = """
The truth about each network lies between its last two columns: no more of the images are robust than survive
the attack, no fewer than are proved. Training with the bounds is what brings the two together."""


def register(app: typer.Typer) -> None:
    app.command("quickstart")(quickstart)


def quickstart(
    out: Annotated[Path, typer.Option(help="Directory for the runs, the picture and the page.")] = Path(
        "runs/quickstart"
    ),
    steps: Annotated[int | None, typer.Option(min=1, help="Train for fewer steps than the presets.")] = None,
    device: Device = None,
) -> None:
    """Train two small networks on the embedded digits, attack and bound them, draw the picture.

    Takes a minute or two and needs no download. A second start reuses or continues what is there.

    Example:  surebound quickstart --out runs/quickstart
    """
    from surebound.experiment import quickstart as demonstration
    from surebound.experiment.terminal import caller
    from surebound.report.build import Story, make_report
    from surebound.report.quickstart import picture, ranges

    networks = demonstration.train(out, caller, steps, device)
    typer.echo("attacking and bounding both on the 355 test images")
    result = demonstration.compare(networks, out=out, device=device)
    eps = demonstration.SHOWN
    columns = ("network", "accuracy", f"survives PGD, eps {eps}", f"proved robust, eps {eps}")
    rows: list[list[Cell]] = []
    for curve in result.curves:
        attacked, proved = curve.at(eps)
        rows.append([curve.name, *(f"{100 * value:.1f} %" for value in (curve.proved[0], attacked, proved))])
    typer.echo()
    print_table(columns, rows)
    page = out / "index.html"
    picture(result).write(out)
    story = Story(TITLE, (LEAD,), (ranges(result),), command=f"surebound quickstart --out {out}")
    make_report(list(demonstration.run_paths(out).values()), story=story).write(page)
    print_text(f"{CONCLUSION}\n\npicture: {out / 'quickstart.png'} (.svg, .pdf)\npage:    {page}")
