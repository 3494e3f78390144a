"""`surebound results`: list, filter and export what `surebound verify` decided."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.output import Cell, Format, print_table, write_file
from surebound.errors import InputError


class RecordFormat(enum.StrEnum):
    """How the records are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


class StatusName(enum.StrEnum):
    """The values of surebound.verdict.Status, which this module must not import at the top."""

    ROBUST = "robust"
    FALSIFIED = "falsified"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"
    ERROR = "error"


def register(app: typer.Typer) -> None:
    app.command("results")(results)


def results(
    run: Annotated[
        Path,
        typer.Argument(help="A run directory, or where `surebound verify` wrote to.", show_default=False),
    ],
    eps: Annotated[str | None, typer.Option(help="Only these radii: 0.3, 8/255, 0:0.4:0.1.")] = None,
    status: Annotated[list[StatusName] | None, typer.Option(help="Only these statuses; may be repeated.")] = None,
    stage: Annotated[str | None, typer.Option(help="Only what this stage settled.")] = None,
    form: Annotated[RecordFormat, typer.Option("--format", help="How to write the records.")] = RecordFormat.TABLE,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
    witnesses: Annotated[
        Path | None,
        typer.Option(help="Also write each counterexample as INDEX.npy there, several radii in folders."),
    ] = None,
) -> None:
    """List what verification found: one line per image and radius.

    With --witnesses, counterexamples are written as float32 arrays (C, H, W); each lies in its ball exactly.

    Examples:

      surebound results runs/mnist-small --eps 0.3 --status unknown --status timeout

      surebound results runs/mnist-small --format csv --out results.csv --witnesses counterexamples
    """
    from surebound.cli.verify_images import show, tell_errors
    from surebound.experiment.verifications import by_image
    from surebound.verdict import Status
    from surebound.verify import Results, Store
    from surebound.verify.export import COLUMNS, row
    from surebound.verify.radii import parse_radii
    from surebound.verify.run import STORE_NAME
    from surebound.vnnlib.instances import STORE_NAME as INSTANCES

    places = [run] if run.suffix == ".db" else [run / STORE_NAME, run / INSTANCES]
    path = next((place for place in places if place.is_file()), places[0])
    wanted = None if eps is None else set(parse_radii(eps))
    statuses = None if not status else [Status(each.value) for each in status]
    with Store.read(path) as store:
        everything = Results(tuple(store.records()), path)
        regions = store.regions()
    records = tuple(
        record
        for record in by_image(everything, path.parent)
        if (wanted is None or record.eps in wanted)
        and (statuses is None or record.verdict.status in statuses)
        and (stage is None or record.verdict.stage == stage)
    )
    found = Results(records, path)
    if regions:
        typer.echo(f"surebound: these are verdicts about {regions}, not about l-infinity balls of one radius", err=True)
    if not records:
        typer.echo(f"surebound: no record in {path} is like that; without options all are listed", err=True)
    if witnesses is not None:
        count = found.write_witnesses(witnesses)
        typer.echo(f"{count} counterexample(s) written to {witnesses}", err=True)
    if form is RecordFormat.TABLE:
        if out is not None:
            raise InputError("--out needs --format csv, json or parquet; a table is for the screen")
        print_table(COLUMNS, [_shown(row(record)) for record in found])
        tell_errors(found)
        if records and statuses is None and stage is None:
            typer.echo()
            show(found, Format.TABLE)
        return
    content = found.export(form.value)
    if out is not None:
        write_file(out, content)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def _shown(values: dict[str, Cell]) -> list[Cell]:
    """For people: seconds to the millisecond."""
    return [
        round(value, 3) if name == "seconds" and isinstance(value, float) else value for name, value in values.items()
    ]
