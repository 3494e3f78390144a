"""An artefact's files: page, tables, figures, and every number with what it rests on."""

from __future__ import annotations

import json
import re
from pathlib import Path

from surebound.experiment.environment import describe_environment
from surebound.report import page
from surebound.report.table import write_text
from surebound.reproduction.artefacts.base import Artefact, Drawn
from surebound.reproduction.scale import Scale


def write(artefact: Artefact, drawn: Drawn, scale: Scale, out: Path) -> list[Path]:
    """Everything under OUT/NAME; returns the paths, the page first."""
    folder = out / artefact.name
    command = f"surebound reproduce {artefact.name} --scale {scale} --out {out}"
    body = [
        page.paragraph(f"Gowal et al. 2018, {label(artefact)} · scale {scale}", "kicker"),
        _heading(drawn.headline or artefact.title),
        *(figure.html() for figure in drawn.figures),
        *(page.paragraph(note, "note") for note in drawn.notes),
    ]
    for table in drawn.tables:
        shown = table.html()
        body.append(page.details(table.caption, shown) if table.name == "networks" else shown)
    body += [page.heading("Do it again"), page.command(command)]
    target = folder / "index.html"
    write_text(target, page.page(f"{label(artefact)}: {artefact.title}", body))
    paths = [target]
    for figure in drawn.figures:
        paths += figure.write(folder)
    for table in drawn.tables:
        paths += table.write(folder)
    record = {
        "artefact": artefact.name,
        "scale": scale.value,
        "headline": drawn.headline,
        "commit": describe_environment()["commit"],
        "command": f"surebound reproduce {artefact.name} --scale {scale}",
        "notes": [*drawn.notes, *(note for table in drawn.tables for note in table.notes)],
        "numbers": list(drawn.numbers),
    }
    write_text(folder / "numbers.json", json.dumps(record, indent=1) + "\n")
    return [*paths, folder / "numbers.json"]


def _heading(text: str) -> str:
    """A long one in smaller letters; `CIFAR-10` stays on one line."""
    shown = re.sub(r"(?<=[A-Z])-(?=\d)", "\N{NON-BREAKING HYPHEN}", page.esc(text))
    return f'<h1 class="long">{shown}</h1>' if len(text) > 80 else f"<h1>{shown}</h1>"


def label(artefact: Artefact) -> str:
    """`table-4` -> `table 4`."""
    return artefact.name.replace("-", " ")
