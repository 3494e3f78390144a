"""Lists of instances on the command line."""

from __future__ import annotations

from pathlib import Path

import typer

from surebound.cli.exits import EXIT_ERRORS
from surebound.cli.output import Cell, Format, print_table

WORDS = {"falsified": "sat", "robust": "unsat", "unknown": "unknown", "timeout": "timeout", "error": "error"}


def run_list(
    path: Path, folder: Path | None, out: Path | None, mix: bool, form: Format, certificates: Path | None = None
) -> None:
    """Decide every line that the store has not settled; a table of all of them."""
    from surebound.vnnlib.instances import STORE_NAME, read_instances, run_instances

    listed = read_instances(path, folder)
    place = path.parent if out is None else out
    records = run_instances(
        listed,
        place,
        mix=mix,
        certificates=certificates,
        report=lambda record: typer.echo(
            f"{listed[record.index].vnnlib.name}: {WORDS[record.verdict.status.value]}, "
            f"{record.verdict.seconds:.1f} s  {record.verdict.detail}".rstrip(),
            err=True,
        ),
    )
    rows: list[list[Cell]] = [
        [
            record.index,
            listed[record.index].onnx.name,
            listed[record.index].vnnlib.name,
            WORDS[record.verdict.status.value],
            record.verdict.stage,
            round(record.verdict.seconds, 2),
        ]
        for record in records
    ]
    print_table(("index", "network", "query", "verdict", "stage", "seconds"), rows, form)
    typer.echo(f"results: {place / STORE_NAME}", err=True)
    if certificates is not None:
        from surebound.cli.certified import tell_certificates

        tell_certificates(sum(row[3] == "unsat" for row in rows), certificates, "unsat instances")
    errors = [row for row in rows if row[3] == "error"]
    if errors:
        typer.echo(
            f"surebound: {len(errors)} of {len(rows)} instances ended in an error, the first is number {errors[0][0]} "
            f"({errors[0][2]}). What is mended is decided when the same command is given again.",
            err=True,
        )
        raise typer.Exit(EXIT_ERRORS)
