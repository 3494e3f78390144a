"""`surebound check` and `surebound explain`: confirm certificates, and say in words what one rests on."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.exits import EXIT_ERRORS
from surebound.errors import InputError


def register(app: typer.Typer) -> None:
    app.command("check")(check)
    app.command("explain")(explain)


def check(
    directory: Annotated[
        Path, typer.Argument(help="Where `surebound verify --certificates` wrote to.", show_default=False)
    ],
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    exact: Annotated[bool, typer.Option("--exact", help="Compute with rationals: exact and slow, small nets.")] = False,
) -> None:
    """Confirm certificates with a checker that shares no code with the search: numpy, no solver, one file.

    It bounds each claim again from the splits, slopes and multipliers that the certificate names. The exit code is 1 if
    one is rejected, with the place and the number that failed. The same file runs alone, on a machine without
    surebound: `python checker.py DIRECTORY` (docs/certificates.md says where it is and what it computes).

    Examples:

      surebound verify runs/digits --eps 1/10 --certificates proofs

      surebound check proofs --jobs 2

      surebound check proofs --exact
    """
    from surebound.cli.bar import Bar

    paths = _certificates(directory)
    start, found = time.monotonic(), list[tuple[str, str, int]]()
    with Bar("checking", "certificates are only read") as bar, ProcessPoolExecutor(jobs) as pool:
        for each in pool.map(_checked, paths, [exact] * len(paths), chunksize=4):
            found.append(each)
            if found[-1][0] == "rejected":
                typer.echo(f"{paths[len(found) - 1].name}: rejected: {found[-1][1]}")
            bar.show(len(found), len(paths), f"{sum(kind != 'rejected' for kind, *_ in found):,} valid")
    rejected = sum(kind == "rejected" for kind, *_ in found)
    size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file()) / 1e6
    seconds = time.monotonic() - start
    typer.echo(f"{len(found) - rejected:,} valid, {rejected:,} rejected, {size:.1f} MB, {seconds:.0f} s")
    if rejected:
        raise typer.Exit(EXIT_ERRORS)


def _certificates(directory: Path) -> list[Path]:
    paths = sorted(directory.glob("*.cert")) if directory.is_dir() else []
    if not paths:
        raise InputError(
            f"{directory} holds no certificates; `surebound verify NET --certificates {directory}` writes them"
        )
    if not (directory / "network.net").is_file():
        raise InputError(f"{directory} has no network.net, the network that its certificates are about")
    return paths


def _checked(path: Path, exact: bool) -> tuple[str, str, int]:
    from surebound.checker import Rejected
    from surebound.checker import check as check_one

    try:
        kind, worst, leaves = check_one(path.read_bytes(), (path.parent / "network.net").read_bytes(), exact)
    except Rejected as error:
        return "rejected", str(error), 0
    return kind, f"{worst:.6g}", leaves


def explain(
    certificate: Annotated[Path, typer.Argument(help="A file that ends in .cert.", show_default=False)],
) -> None:
    """Say in words what a certificate claims, what it rests on and how close it is; draw its tree of splits.

    Examples:

      surebound explain proofs/00042.eps-1-10.cert
    """
    if not certificate.is_file():
        raise InputError(f"{certificate} is no file; give one that `surebound verify --certificates` wrote")
    from surebound.certificates.explain import explained

    network = certificate.parent / "network.net"
    if not network.is_file():
        raise InputError(f"{network} is missing: the network that the certificate is about")
    for line in explained(certificate.read_bytes(), network.read_bytes()):
        typer.echo(line)
