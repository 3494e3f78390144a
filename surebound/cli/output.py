"""Tables on standard output, in the formats every command offers."""

from __future__ import annotations

import csv
import enum
import io
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import typer

from surebound.disk import explained, write_whole
from surebound.errors import InputError

Cell = str | int | float | bool | None


class Percentage(float):
    """A number of [0, 1] that people read in percent; files and programs get the number."""


class Format(enum.StrEnum):
    """How a table is written."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], form: Format = Format.TABLE) -> None:
    """Write rows to standard output; `table` is for people, the others are for files and programs."""
    if form is Format.TABLE:
        _print_rich(columns, rows)
    else:
        typer.echo({Format.MARKDOWN: _markdown, Format.CSV: _csv, Format.JSON: _json}[form](columns, rows))


def print_text(content: str) -> None:
    """Write sentences to standard output; on a terminal no word is broken at its edge."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        content = "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in content.split("\n"))
    typer.echo(content)


def text(cell: Cell) -> str:
    """One cell for people: yes and no, six digits, nothing for None."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Percentage):
        return f"{cell:.2%}"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def percent(share: float | None) -> Percentage | None:
    """A share, shown in percent with two decimals, as the papers print them."""
    return None if share is None else Percentage(share)


def write_file(path: Path, content: str | bytes, option: str = "--out") -> None:
    """Write what the user asked for with ``option``, in a directory that is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InputError(f"{option} {path} cannot be written: {explained(error)}") from error


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # A pipe has no width: rich would fold everything to 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 160)
    for number, group in enumerate(groups(columns, rows, console.width)):
        shown = Table(box=None, pad_edge=False)
        for index in group:
            numbers = all(isinstance(row[index], (int, float)) and not isinstance(row[index], bool) for row in rows)
            shown.add_column(columns[index], justify="right" if rows and numbers else "left", overflow="fold")
        for row in rows:
            shown.add_row(*(Text(text(row[index])) for index in group))  # Text: brackets in a cell are no markup
        if number:
            console.print()
        console.print(shown)


def groups(columns: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> list[list[int]]:
    """Columns to print side by side, so that no cell is cut at ``width``; every group begins with the first column.

    >>> groups(("eps", "images", "seconds"), [["1/10", 80, 0.5]], width=14)
    [[0, 1], [0, 2]]
    """
    wide = [max(len(text(cell)) for cell in (name, *(row[i] for row in rows))) for i, name in enumerate(columns)]
    found = [[0]]
    for i in range(1, len(columns)):
        if len(found[-1]) > 1 and sum(wide[k] + 2 for k in (*found[-1], i)) - 2 > width:
            found.append([0])
        found[-1].append(i)
    return found


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    lines = [
        list(columns),
        ["---"] * len(columns),
        *([text(cell).replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue().rstrip("\n")


def _json(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    return json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=1)
