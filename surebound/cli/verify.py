"""`surebound verify`: decide queries about ONNX networks, or test images by a cascade of stages."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.loading import loading
from surebound.cli.options import NET_HELP, Data, DataDir, First, Form, Weights
from surebound.cli.output import EXIT_ERRORS, Cell, Format, percent, print_table
from surebound.errors import InputError

if TYPE_CHECKING:
    from surebound.verify import Results, Summary


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)


def verify(
    target: Annotated[
        str | None, typer.Argument(help="A VNN-LIB query; or a network: " + NET_HELP, show_default=False)
    ] = None,
    eps: Annotated[
        str | None,
        typer.Option(
            help="Radius in pixel space, kept exact: 0.3, 8/255; a list 0.1,0.2; or a range FIRST:LAST:STEP.",
            show_default=False,
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: the ONNX file of a network of the query; once per network."),
    ] = None,
    serialise_assignments: Annotated[
        Path | None, typer.Option(help="Write a satisfying assignment to this folder, as TensorProto.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option(help="An ONNX file, with --vnnlib.")] = None,
    vnnlib: Annotated[Path | None, typer.Option(help="A query about the --onnx network.")] = None,
    result_file: Annotated[Path | None, typer.Option(help="With --onnx: write the result to this file, too.")] = None,
    instances: Annotated[Path | None, typer.Option(help="A list of lines NETWORK,QUERY,SECONDS to decide.")] = None,
    onnx_dir: Annotated[
        Path | None, typer.Option(help="Where --instances finds its files (default: beside it).")
    ] = None,
    cascade: Annotated[
        str, typer.Option(help="Which stages: default, paper (MIP, LP, attackable) or fast.")
    ] = "default",
    tighten: Annotated[
        int,
        typer.Option(
            min=0,
            help="Linear programs tighten the bounds of N ReLUs per image before MIP and LP (see docs/verification).",
        ),
    ] = 0,
    first: First = None,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of the results store (default: the run's own; without a run none is kept)."),
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(help="Write certificates of verdicts to this folder, for `surebound check`."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Worker processes (default: one per core).")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Images on Dask workers: tcp://SCHEDULER:PORT, or local:N for N processes here."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds for a query, or per image and stage (default: none).")
    ] = None,
    mix: Annotated[
        bool, typer.Option("--mix", help="Allow a store that holds results of other weights or code.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the attacks.")] = 0,
    form: Form = Format.TABLE,
) -> None:
    """Decide a query about networks; or prove or refute, image by image, that labels stay within balls.

    Queries are VNN-LIB 1.0 or 2.0, networks ONNX, either may be gzip. Standard output starts with the verdict: sat,
    unsat, unknown or timed-out; after sat the assignment follows, checked in onnxruntime. The exit code is 0 whenever a
    verdict is printed, 2 after an error, and 1 if some instances of a list ended in one.

    Images: every decision is written to the results store at once: a run that is stopped or killed goes on where it
    was when it is started again. `surebound results` lists and exports the images. What no stage decides
    counts as attackable.

    Examples:

      surebound verify query.vnnlib --network N=net.onnx --timeout 60

      surebound verify --onnx net.onnx --vnnlib prop.vnnlib --timeout 300 --result-file out.txt

      surebound verify --instances instances.csv --out results

      surebound verify runs/mnist-small --eps 0.3

      surebound verify runs/mnist-small --eps 0:0.45:0.05 --cascade fast

      surebound verify runs/mnist-small --eps 0.3 --certificates proofs

      surebound verify net.onnx --data images.npz --eps 1/20 --out proofs

      surebound verify mypkg.nets:build --weights w.safetensors --data digits --eps 8/255 --out proofs

      surebound verify runs/mnist-small --eps 0.3 --cluster tcp://scheduler:8786
    """
    queries = network or onnx or vnnlib or instances or (target and target.removesuffix(".gz").endswith(".vnnlib"))
    if cluster is not None and (queries or jobs is not None):
        raise InputError("--cluster is for images, and instead of --jobs; leave one of them out")
    if network or (target is not None and target.removesuffix(".gz").endswith(".vnnlib")):
        from surebound.cli.verify_query import run_standard

        run_standard(
            Path(_needed(target, "the query file")), network or [], timeout, serialise_assignments, seed, certificates
        )
    elif onnx is not None or vnnlib is not None:
        from surebound.cli.verify_query import run_pair

        if onnx is None or vnnlib is None:
            raise InputError("--onnx and --vnnlib go together; give both")
        run_pair(onnx, vnnlib, timeout, result_file, seed, certificates)
    elif instances is not None:
        from surebound.cli.verify_instances import run_list

        run_list(instances, onnx_dir, out, mix, form)
    else:
        _images(
            _needed(target, "a query or a network"), _needed(eps, "--eps"),
            cascade, tighten, first, weights, data, data_dir, out, certificates, jobs, cluster, timeout, mix, seed,
            form,
        )  # fmt: skip


def _needed(value: str | None, what: str) -> str:
    if value is None:
        raise InputError(f"{what} is missing; `surebound verify --help` shows what goes together")
    return value


def _images(
    target: str,
    eps: str,
    cascade: str,
    tighten: int,
    first: int | None,
    weights: Path | None,
    data: str | None,
    data_dir: Path | None,
    out: Path | None,
    certificates: Path | None,
    jobs: int | None,
    cluster: str | None,
    timeout: float | None,
    mix: bool,
    seed: int,
    form: Format,
) -> None:
    """Decide test images by a cascade."""
    with loading():
        from surebound.cli.verify_progress import Counts
        from surebound.experiment.target import load_target
        from surebound.experiment.verifications import note_verification
        from surebound.region import LinfBall
        from surebound.search.cascade import cascade as find_cascade
        from surebound.verify import verify as decide
        from surebound.verify.cluster import check_cluster
        from surebound.verify.radii import parse_radii

    radii = parse_radii(eps)
    stages = find_cascade(cascade).tightened(tighten) if tighten else find_cascade(cascade)
    stages.check()  # before anything slow is loaded
    if cluster is not None:
        check_cluster(cluster)
    if ":" in target:
        sys.path.insert(0, os.getcwd())  # workers import the factory's module, too
    found = load_target(target, weights=weights, data=data, data_dir=data_dir)
    place = store_directory(target, out)
    images, labels = found.first(first)
    limit = float("inf") if timeout is None else timeout
    here = None if cluster is not None else jobs or os.cpu_count() or 1
    try:
        with Counts() as progress:
            results = decide(
                found.model, [LinfBall(images, radius, clip=(0, 1)) for radius in radii], labels, stages,
                timeout=limit, jobs=here, cluster=cluster, out=place, mix=mix, certificates=certificates, seed=seed,
                progress=progress,
            )  # fmt: skip
    except KeyboardInterrupt:
        kept = "nothing was kept: use --out DIR" if place is None else "the same command goes on from here"
        typer.echo(f"stopped; {kept}", err=True)
        raise
    if place is not None:
        note_verification(
            place, network=found.name, data=found.data, images=len(images), radii=radii,
            cascade=stages, timeout=limit, seed=seed,
        )  # fmt: skip
    show(results, form)
    if certificates is not None:
        tell_certificates(results, certificates)
    if tell_errors(results):
        raise typer.Exit(EXIT_ERRORS)


def tell_errors(results: Results) -> bool:
    """Say why images ended in errors, each reason once; were there any?"""
    reasons = Counter(r.verdict.detail or "no reason given" for r in results if r.verdict.status.value == "error")
    for reason, count in reasons.most_common(5):
        typer.echo(f"surebound: {count} image(s) ended in an error: {reason}", err=True)
    if reasons:
        typer.echo("surebound: they count as attackable, and are tried again by the same command", err=True)
    return bool(reasons)


def tell_certificates(results: Results, directory: Path) -> None:
    """Say how many verdicts have a certificate, and what to do with them."""
    decided = [record for record in results if record.verdict.status.decided]
    kept = len(list(directory.glob("*.cert")))
    typer.echo(
        f"certificates: {kept:,} in {directory}, {len(decided):,} verdicts; surebound check {directory}", err=True
    )


def store_directory(target: str, out: Path | None) -> Path | None:
    """Where results go: --out, or the run directory itself; None: nowhere, they are only shown."""
    if out is not None:
        return out
    if (Path(target) / "config.toml").is_file():
        return Path(target)
    typer.echo("results are shown and not kept; with --out DIR they are, and a second start goes on", err=True)
    return None


COLUMNS = (
    "eps", "images", "clean error", "PGD error", "verified error", "float-sound", "truth in", "unknown",
    "timeout", "error", "seconds",
)  # fmt: skip


def show(results: Results, form: Format) -> None:
    """One line per radius; for people also what each stage settled."""
    summaries = [results.summary(radius) for radius in results.radii]
    print_table(COLUMNS, [_row(summary) for summary in summaries], form)
    if form is Format.TABLE:
        typer.echo()
        stages: list[list[Cell]] = [[str(s.eps), *line] for s in summaries for line in s.stages]
        print_table(("eps", "stage", "status", "images"), stages)
        if results.path is not None:
            typer.echo(f"\nresults: {results.path}")


def _row(summary: Summary) -> list[Cell]:
    counts = dict(summary.statuses)
    low, high = summary.falsified_error, summary.verified_error
    return [
        str(summary.eps), summary.total, percent(summary.clean_error), percent(summary.pgd_error),
        percent(summary.verified_error), percent(summary.float_sound_error), f"[{low:.2%}, {high:.2%}]",
        counts.get("unknown", 0), counts.get("timeout", 0), counts.get("error", 0), round(summary.seconds, 1),
    ]  # fmt: skip
