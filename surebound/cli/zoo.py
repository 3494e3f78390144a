"""`surebound zoo`: the networks that come with the package, and packaging one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.exits import EXIT_ERRORS
from surebound.cli.options import Form
from surebound.cli.output import Cell, Format, percent, print_table
from surebound.errors import InputError

if TYPE_CHECKING:
    from surebound.zoo import ZooEntry

SHOWN = ("network", "data", "eps_train", "eps", "clean error", "PGD error", "unproved", "unproved (IBP)")
ALSO = ("method", "parameters", "core-hours", "command", "commit", "certificates")


def zoo(
    of: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Say what is known of this network.", show_default=False)
    ] = None,
    form: Form = Format.TABLE,
    add: Annotated[Path | None, typer.Option(help="A finished run to package.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option("--as", help="The name to package it under.", show_default=False)] = None,
    verified: Annotated[
        Path | None,
        typer.Option(
            help="Results of `surebound verify` on the network --as, to note; of 1,000 images or more.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        str | None, typer.Option(help="Check the packaged certificates of this network.", show_default=False)
    ] = None,
    certified: Annotated[
        Path | None,
        typer.Option(help="Certificates of the network --as: package a sample of them.", show_default=False),
    ] = None,
    leaderboard: Annotated[
        Path | None,
        typer.Option(help="Write a page that ranks them with the paper's and the literature's to this folder."),
    ] = None,
) -> None:
    """List the networks that come with the package, with their measured errors; or package a run of yours.

    Examples:

      surebound zoo mnist-small-ibp-0.4

      surebound zoo --format json

      surebound zoo --leaderboard docs

      surebound zoo --check mnist-small-ibp-0.4

      surebound verify mnist-small-ibp-0.4 --eps 1/10 --certificates proofs && surebound check proofs

      surebound zoo --certified proofs --as mnist-small-ibp-0.4
    """
    from surebound import zoo as nets
    from surebound.experiment.publish import publish, publish_verification

    if check is not None:
        _check_sample(check)
        return
    if leaderboard is not None:
        from surebound.reproduction.leaderboard import write

        typer.echo("".join(f"wrote {path}\n" for path in write(leaderboard)), nl=False)
        return
    if certified is not None and name is not None:
        from surebound.experiment.certified import publish_sample

        typer.echo(f"wrote {publish_sample(certified, name)}")
        return
    if verified is not None and name is not None and add is None:
        typer.echo(f"wrote {publish_verification(verified, name)}")
        return
    if (add is None) != (name is None) or verified is not None:
        raise InputError(
            "--add and --as belong together: the run directory, and the name to package it under; so do --verified "
            "and --as: the results of `surebound verify`, and the packaged network they are about"
        )
    if add is not None and name is not None:
        typer.echo(f"wrote {publish(add, name)}")
        return
    if of is not None:
        _describe(nets.entry(of))
        return
    rows = [row for entry in nets.entries() for row in _rows(entry)]
    if form is Format.TABLE:
        print_table(SHOWN, [row[: len(SHOWN)] for row in rows], form)
    else:
        print_table((*SHOWN, *ALSO), rows, form)


def _rows(entry: ZooEntry) -> list[list[Cell]]:
    """List a network's errors, a row for each radius, and what else is known of it."""
    unproved: dict[str, float] = entry.results["verified_error"]
    # An attack on the first few images is not to be read beside errors on all of them.
    whole = entry.results["pgd_images"] == entry.results["images"]
    attacked: dict[str, float] = entry.results["pgd_error"] if whole else {}
    sample = (entry.certificates or {}).get("sha256")
    also = [entry.method, entry.parameters, entry.core_hours, entry.command, entry.commit, sample]
    rows: list[list[Cell]] = []
    for radius, value in unproved.items():
        found = entry.decided(radius)
        clean, pgd = entry.results["clean_error"], found.get("pgd_error", attacked.get(radius))
        errors = (clean, pgd, found.get("float_sound_verified_error"), value)
        rows.append([entry.name, entry.data, entry.eps_train, radius, *map(percent, errors), *also])
    return rows


def _describe(entry: ZooEntry) -> None:
    """Say what is known of one network."""
    hours = "not noted" if entry.core_hours is None else f"{entry.core_hours:g}"
    facts = (
        ("network", f"{entry.name}: {entry.architecture.name}, {entry.parameters:,} parameters, for {entry.data}"),
        ("trained by", f"{entry.method}, eps_train {entry.eps_train}, seed {entry.seed}; core-hours: {hours}"),
        ("command", f"{entry.command}  (commit {(entry.commit or 'unknown')[:9]})"),
        ("use", f"sb.load({entry.name!r}), surebound verify {entry.name} --eps ..."),
        ("certificates", f"surebound zoo --check {entry.name}" if entry.certificates else "none are packaged"),
    )
    for name, text in facts:
        typer.echo(f"{name:<14}{text}")
    print_table(SHOWN[3:], [row[3 : len(SHOWN)] for row in _rows(entry)])
    for radius in entry.results["verified_error"]:
        whole = entry.results["images"]
        images = entry.decided(radius).get("images", whole)
        if images < whole:
            typer.echo(f"at {radius} PGD and verified errors are of the first {images:,} of {whole:,} images")


def _check_sample(name: str) -> None:
    """Check the packaged certificates of a network, against the network as the package has it."""
    from surebound.certificates.archive import entries
    from surebound.cli.check import run_check
    from surebound.experiment.certified import packaged_network, sample_of

    if run_check(entries(sample_of(name)), 1, False, packaged_network(name)):
        raise typer.Exit(EXIT_ERRORS)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(zoo)
