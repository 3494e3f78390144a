"""Tables on standard output, in the formats every command offers."""

from __future__ import annotations

import csv
import enum
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from surebound.errors import InputError

Cell = str | int | float | bool | None

#: The command did its work, but something in it ended in an error.
EXIT_ERRORS = 1
#: The user stopped the command; the same work can go on.
EXIT_STOPPED = 3


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


def text(cell: Cell) -> str:
    """One cell for people: yes and no, six digits, nothing for None."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def percent(share: float | None) -> str | None:
    """Two decimals, as the papers print them."""
    return None if share is None else f"{share:.2%}"


def write_file(path: Path, content: str | bytes, option: str = "--out") -> None:
    """Write what the user asked for with ``option``, in a directory that is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InputError(f"{option} {path} cannot be written: {error}") from error


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        numbers = all(isinstance(row[index], (int, float)) and not isinstance(row[index], bool) for row in rows)
        shown.add_column(column, justify="right" if rows and numbers else "left")
    for row in rows:
        shown.add_row(*(Text(text(cell)) for cell in row))  # Text: brackets in a cell are no markup
    # A pipe has no width: rich would fold everything to 80 columns.
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


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
