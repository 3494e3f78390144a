"""`surebound audit`: look for a wrong answer, for as long as one likes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.exits import EXIT_ERRORS, EXIT_INTERRUPTED
from surebound.cli.options import Form
from surebound.cli.output import Format, print_table, write_file

if TYPE_CHECKING:
    from surebound.audit import Tally


def register(app: typer.Typer) -> None:
    app.command("audit")(audit)


def audit(
    minutes: Annotated[float, typer.Option("--minutes", "-m", help="How long.", min=0)] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Repeats the same trials in the same order.")] = 0,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only this generator; may be given several times.")
    ] = None,
    trial: Annotated[int | None, typer.Option("--trial", help="One trial by its number, as a find says it.")] = None,
    out: Annotated[Path | None, typer.Option("--json", help="Write all counts and finds to this file.")] = None,
    form: Form = Format.TABLE,
) -> None:
    """Look for a wrong answer: random networks, ONNX files and queries, every method and stage.

    Every claim is held against executions inside the region (random points, corners, gradient ascent), against
    onnxruntime and against exact arithmetic. A find is printed as a script that shows it. Exit code 1 if there is one.

    Examples:

      surebound audit --minutes 10

      surebound audit --minutes 60 --seed 7 --only operators --only queries --json audit.json

      surebound audit --seed 7 --only operators --trial 123
    """
    import torch

    from surebound.audit import Tally
    from surebound.audit import audit as run
    from surebound.cli.bar import Bar

    torch.set_num_threads(1)
    tally, seconds = Tally(), 60 * minutes
    bar = Bar("audit", kept="what was compared until then is below")
    shown = 0

    def report(tally: Tally, over: float) -> None:
        nonlocal shown
        for find in tally.finds[shown:]:
            typer.echo(f"{find}\n")
        shown = len(tally.finds)
        bar.show(int(over), int(seconds), f"{sum(tally.trials.values())} trials, {tally.comparisons:,} comparisons")

    try:
        with bar:
            if trial is None:
                run(seconds, seed=seed, only=only or (), report=report, tally=tally)
            else:
                run(seed=seed, only=only or (), trials=1, first=trial, report=report, tally=tally)
    except KeyboardInterrupt:
        _print(tally, form, out)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _print(tally, form, out)
    if tally.finds:
        raise typer.Exit(EXIT_ERRORS)


def _print(tally: Tally, form: Format, out: Path | None) -> None:
    from surebound.audit.operators import rules

    if out is not None:
        write_file(out, json.dumps(tally.summary(), indent=1), "--json")
    found = {name: sum(find.generator == name for find in tally.finds) for name in tally.trials}
    columns = ("generator", "trials", "refused", "comparisons", "finds")
    rows = [(n, c, tally.refused[n], tally.generators[n], found[n]) for n, c in tally.trials.items()]
    print_table(columns, rows, form)
    typer.echo()
    methods = [(n, c, tally.silent[n]) for n, c in sorted(tally.methods.items())]
    print_table(("method", "comparisons", "refused or undecided"), methods, form)
    typer.echo()
    print_table(("operator", "comparisons"), sorted(tally.operators.items()), form)
    missing = sorted({rule.op for rule in rules()} - set(tally.operators))
    typer.echo(f"{len(missing)} operators of `surebound ops` were in no network: {', '.join(missing) or 'none'}")
