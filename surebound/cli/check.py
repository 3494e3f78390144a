"""`surebound check` and `surebound explain`: confirm certificates, and say in words what one rests on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.exits import EXIT_ERRORS
from surebound.cli.notes import note
from surebound.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from surebound.certificates.archive import StoredCertificate


def register(app: typer.Typer) -> None:
    app.command("check")(check)
    app.command("explain")(explain)


def check(
    place: Annotated[
        Path,
        typer.Argument(help="Where `surebound verify --certificates` wrote to, or an archive.", show_default=False),
    ],
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    exact: Annotated[bool, typer.Option("--exact", help="Compute with rationals: exact and slow, small nets.")] = False,
    pack: Annotated[
        Path | None, typer.Option(help="If all are valid, write them and the network to one archive (.zip).")
    ] = None,
    onnx: Annotated[
        Path | None, typer.Option(help="Compare the network with this ONNX file, in onnxruntime, at some points.")
    ] = None,
) -> None:
    """Confirm certificates with a checker that shares no code with the search: numpy, no solver, one file.

    It bounds each claim again from the splits, slopes and multipliers that the certificate names. The exit code is 1 if
    one is rejected, with the place and the number that failed. The same file runs alone, on a machine without
    surebound: `python checker.py DIRECTORY` (docs/certificates.md says where it is and what it computes).

    Where an ONNX file of the network is given, or lies beside the certificates as network.onnx, onnxruntime runs it and
    its outputs must lie in the checker's bounds.

    Examples:

      surebound verify runs/digits --eps 1/10 --certificates proofs

      surebound check proofs --jobs 2 --pack proofs.zip

      surebound check proofs.zip

      surebound check proofs --exact
    """
    entries = found_entries(place)
    if run_check(entries, jobs, exact):
        raise typer.Exit(EXIT_ERRORS)
    _compare(place, entries[0], onnx)
    if pack is not None:
        from surebound.certificates.archive import pack_archive

        if not place.is_dir():
            raise InputError(f"--pack is for a directory; {place} is an archive already")
        count = pack_archive(place, pack)
        note(f"archive: {count:,} certificates in {pack}, {pack.stat().st_size / 1e6:.1f} MB")


def run_check(
    entries: list[StoredCertificate],
    jobs: int,
    exact: bool,
    network: bytes | None = None,
    tell: Callable[[str], None] = typer.echo,
) -> int:
    """Check certificates and tell how many are valid; return how many are rejected."""
    from surebound.certificates.checked import note_checked
    from surebound.cli.bar import Bar

    start, rejected, size, valid = time.monotonic(), 0, 0, dict[str, str]()
    count = len(entries)
    with Bar("checking", "certificates are only read") as bar, ProcessPoolExecutor(jobs) as pool:
        every = pool.map(_checked, entries, [exact] * count, [network] * count, chunksize=4)
        for entry, (problem, digest, length) in zip(entries, every, strict=True):
            size += length
            if problem:
                rejected += 1
                tell(f"{entry.name}: rejected: {problem}")
            else:
                valid[entry.name] = digest
            bar.show(len(valid) + rejected, count, f"{len(valid):,} valid")
    seconds = time.monotonic() - start
    tell(f"{len(valid):,} valid, {rejected:,} rejected, {size / 1e6:.1f} MB, {seconds:.0f} s")
    place = entries[0].place
    if place.is_dir():
        try:
            note_checked(place, valid)
        except OSError as error:
            note(f"could not note in {place} what is checked: {error}")
    return rejected


def found_entries(place: Path) -> list[StoredCertificate]:
    """Return the certificates of a directory or an archive; InputError if there are none."""
    from surebound.certificates.archive import entries

    found = entries(place) if place.exists() else []
    if not found:
        raise InputError(f"{place} holds no certificates; `surebound verify NET --certificates {place}` writes them")
    return found


def _checked(entry: StoredCertificate, exact: bool, network: bytes | None) -> tuple[str, str, int]:
    """Return what is wrong with a certificate, its digest and its size."""
    from surebound.certificates.checked import digest_of
    from surebound.checker import Rejected
    from surebound.checker import check as check_one

    try:
        content, own = entry.read()
        check_one(content, own if network is None else network, exact)
    except Rejected as error:
        return str(error), "", 0
    return "", digest_of(content), len(content)


def _compare(place: Path, entry: StoredCertificate, onnx: Path | None) -> None:
    """Compare the network with an ONNX file, if there is one."""
    import importlib.util

    import numpy as np

    from surebound.certificates.files import opened

    beside = place / "network.onnx"
    file = onnx or (beside if place.is_dir() and beside.is_file() else None)
    if file is None:
        return
    if importlib.util.find_spec("onnxruntime") is None:
        if onnx is not None:
            raise MissingExtraError("onnxruntime", "onnx", "comparing the network with an ONNX file")
        note(f"{file} was not compared: onnxruntime is not installed")
        return
    from surebound.graph.onnx.file import read_model
    from surebound.vnnlib.flat_check import compare_network

    certificate, network = entry.read()
    arrays = opened(certificate)[1]
    points = [arrays[name] for name in ("center", "lower", "upper") if name in arrays]
    count = compare_network(network, read_model(file), [np.asarray(point, np.float32) for point in points])
    typer.echo(f"the network computes what {file.name} does in onnxruntime, at {count} points")


def _found(certificate: Path) -> tuple[bytes, bytes]:
    """Return a certificate by its path, also of one in a pack, and the network that it is about."""
    from surebound.certificates.archive import StoredCertificate
    from surebound.certificates.directory import NETWORK
    from surebound.certificates.packs import held

    folder = certificate.parent
    found = held(folder).get(certificate.name) if folder.is_dir() else None
    if found is None and not certificate.is_file():
        raise InputError(f"{certificate} is no file; give one that `surebound verify --certificates` wrote")
    if not (folder / NETWORK).is_file():
        raise InputError(f"{folder / NETWORK} is missing: the network that the certificate is about")
    return StoredCertificate(folder, certificate.name, found).read()


def explain(
    certificate: Annotated[
        Path, typer.Argument(help="A name that ends in .cert, as `surebound check` says it.", show_default=False)
    ],
    picture: Annotated[
        Path | None, typer.Option(help="Draw the trees of splits to this file: .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Say in words what a certificate claims, what it rests on and how close it is; draw its tree of splits.

    Examples:

      surebound explain proofs/00042.eps-1-10.cert

      surebound explain proofs/00042.eps-1-10.cert --picture tree.svg
    """
    from surebound.certificates.explain import explained, trees

    content, network = _found(certificate)
    for line in explained(content, network):
        typer.echo(line)
    if picture is not None:
        from surebound.report.trees import draw_trees

        drawn = trees(content)
        if not drawn:
            raise InputError(f"{certificate} has no tree: bounds of the whole region prove it; leave --picture out")
        draw_trees(drawn, picture)
        note(f"picture: {picture}")
