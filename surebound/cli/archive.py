"""`surebound archive`: prove networks at their radii, check every certificate, and pack them, a file for each one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.exits import EXIT_ERRORS
from surebound.cli.loading import loading
from surebound.cli.notes import note
from surebound.cli.options import Clip, Data, DataDir, Device, First, Form, Quiet, Weights
from surebound.cli.output import Cell, Format, print_table

if TYPE_CHECKING:
    from fractions import Fraction

    from surebound.experiment.target import Target

SHOWN = ("archive", "images", "proved", "broken", "open", "certificates", "rejected", "without", "MB")
ALSO = ("bytes", "sha256")


def register(app: typer.Typer) -> None:
    app.command("archive")(archive)


def archive(
    networks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NET]...",
            help="Run directories, ONNX files, factories or packaged networks (default: all that are packaged).",
            show_default=False,
        ),
    ] = None,
    eps: Annotated[
        str | None, typer.Option(help="Radii, kept exact, e.g. 0.1,8/255 (default: those it was measured at).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the archives; a folder in it keeps the results of each.")] = Path(
        "archives"
    ),
    first: First = None,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = None,
    clip: Clip = None,
    cascade: Annotated[str, typer.Option(help="Which stages: default, paper, fast or crown.")] = "default",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds per image and stage.")] = 60.0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Worker processes (default: one per core).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the attacks.")] = 0,
    form: Form = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Prove networks at their radii, check every certificate, and pack them: OUT/NET-EPS.zip.

    Of each network and radius the test images are verified with certificates, the checker (numpy, no solver) confirms
    every one of them, and the archive holds those and the network: `surebound check FILE.zip` or `python checker.py`
    on any machine. Archives of the same certificates are the same bytes: their digests can be published. Verdicts are
    kept at once; after Ctrl-C the same command goes on. Nothing is packed while a certificate is rejected.

    Examples:

      surebound archive                                       # every packaged network; hours

      surebound archive mnist-small-ibp-0.4 --eps 0.1,0.3 --first 1000 --jobs 2

      surebound archive runs/digits && surebound check archives/digits-1-10.zip
    """
    with loading():
        from surebound import zoo
        from surebound.experiment.target import load_target
        from surebound.numerics import exact_fraction

    rows = []
    for name in networks or [entry.name for entry in zoo.entries()]:
        if ":" in name:
            sys.path.insert(0, os.getcwd())  # workers import the factory's module, too
        target = load_target(name, weights=weights, data=data, data_dir=data_dir, device=device, clip=clip)
        radii = target.radii if eps is None else [exact_fraction(each, "--eps") for each in eps.split(",")]
        if not radii:
            from surebound.errors import InputError

            raise InputError(f"no radius is known at which {name} was measured; give --eps, e.g. --eps 1/10")
        for radius in radii:
            rows.append(_archive(_stem(name, radius), target, radius, out, first, cascade, timeout, jobs, seed))
    if form is Format.TABLE:
        print_table(SHOWN, [row[: len(SHOWN)] for row in rows], form)
    else:
        print_table((*SHOWN, *ALSO), rows, form)
    if any(row[SHOWN.index("rejected")] for row in rows):
        raise typer.Exit(EXIT_ERRORS)


def _stem(name: str, radius: Fraction) -> str:
    """Return the name of an archive: what was given, so that two runs of one preset have one each."""
    plain = Path(name).name.replace(":", "-").replace("#", "-")
    return f"{plain}-{str(radius).replace('/', '-')}"


def _archive(
    stem: str,
    target: Target,
    radius: Fraction,
    out: Path,
    first: int | None,
    cascade: str,
    timeout: float,
    jobs: int | None,
    seed: int,
) -> list[Cell]:
    """Verify, check and pack one network at one radius; return the row of it."""
    from surebound.certificates.archive import entries, pack_archive
    from surebound.certificates.checked import digest_of
    from surebound.certificates.directory import missing
    from surebound.cli.certified import write_onnx
    from surebound.cli.check import run_check
    from surebound.cli.verify_progress import Counts
    from surebound.region import LinfBall
    from surebound.verdict import Status
    from surebound.verify import verify

    file, results_at = out / f"{stem}.zip", out / stem
    proofs = results_at / "certificates"
    images, labels = target.first(first)
    note(f"{stem}: {len(images):,} images")
    with Counts() as progress:
        results = verify(
            target.model, LinfBall(images, radius, clip=target.clip), labels, cascade, timeout=timeout,
            jobs=target.processes(jobs), out=results_at, certificates=proofs, seed=seed, progress=progress,
        )  # fmt: skip
    write_onnx(target.model, images[:1], proofs / "network.onnx")
    found = entries(proofs)
    rejected = run_check(found, jobs or os.cpu_count() or 1, False, tell=note) if found else 0
    digest = size = None
    if found and not rejected:
        pack_archive(proofs, file)
        digest, size = digest_of(file.read_bytes()), file.stat().st_size
    said = [record.verdict.status for record in results]
    decided = [said.count(Status.ROBUST), said.count(Status.FALSIFIED)]
    without, megabytes = len(missing(proofs)), None if size is None else round(size / 1e6, 2)
    open_ones = len(said) - sum(decided)
    return [file.name, len(said), *decided, open_ones, len(found), rejected, without, megabytes, size, digest]
