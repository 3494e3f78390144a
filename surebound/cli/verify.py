"""`surebound verify`: decide queries about ONNX networks, or test images by a cascade of stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.options import NET_HELP, Clip, Data, DataDir, Device, First, Form, Quiet, ThreatName, Weights
from surebound.cli.output import Format
from surebound.errors import InputError


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
    threat: ThreatName = None,
    network: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: the ONNX file of a network of the query; once per network."),
    ] = None,
    serialise_assignments: Annotated[
        Path | None, typer.Option(help="Write a satisfying assignment to this folder, as TensorProto.")
    ] = None,
    onnx: Annotated[
        str | None, typer.Option(help="An ONNX file, with --vnnlib; or several as [('f', 'a.onnx'), ('g', 'b.onnx')].")
    ] = None,
    vnnlib: Annotated[Path | None, typer.Option(help="A query about the --onnx network.")] = None,
    result_file: Annotated[Path | None, typer.Option(help="With --onnx: write the result to this file, too.")] = None,
    instances: Annotated[Path | None, typer.Option(help="A list of lines NETWORK,QUERY,SECONDS to decide.")] = None,
    onnx_dir: Annotated[
        Path | None, typer.Option(help="Where --instances finds its files (default: beside it).")
    ] = None,
    cascade: Annotated[
        str, typer.Option(help="Which stages: default, paper (MIP, LP, attackable), fast, or crown (for small radii).")
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
    device: Device = None,
    clip: Clip = None,
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
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Seconds for a query, or per image and stage (default: none)."),
    ] = None,
    mix: Annotated[
        bool, typer.Option("--mix", help="Allow a store that holds results of other weights or code.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the attacks.")] = 0,
    fail_under: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            metavar="RATE",
            help="Exit with code 4 if less than so many percent are proved, at any radius.",
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="First read the question back in plain words (standard error).")
    ] = False,
    form: Form = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Decide a query about networks; or prove or refute, image by image, that labels stay within balls.

    Queries are VNN-LIB 1.0 or 2.0, networks ONNX, either may be gzip. Standard output starts with the verdict: sat,
    unsat, unknown or timed-out; after sat the assignment follows, checked in onnxruntime. The exit code is 0 whenever a
    verdict is printed, 2 after an error, 1 if some instances or images ended in one, and 4 if less is proved than
    --fail-under asks for.

    Images: every decision is written to the results store at once: a run that is stopped or killed goes on where it
    was when it is started again. `surebound results` lists and exports the images. What no stage decides
    counts as attackable.

    Examples:

      surebound verify query.vnnlib --network N=net.onnx --timeout 60

      surebound verify --onnx net.onnx --vnnlib prop.vnnlib --timeout 300 --result-file out.txt

      surebound verify --instances instances.csv --out results --certificates proofs

      surebound verify runs/mnist-small --eps 0.3

      surebound verify runs/mnist-small --eps 0:0.45:0.05 --cascade fast

      surebound verify runs/mnist-small --eps 0.3 --certificates proofs

      surebound verify runs/mnist-small --eps 0.1 --quiet --format json --fail-under 90

      surebound verify runs/mnist-small --threat rotation:5deg --first 100

      surebound verify net.onnx --data images.npz --eps 1/20 --out proofs

      surebound verify mypkg.nets:build --weights w.safetensors --data digits --eps 8/255 --out proofs

      surebound verify runs/mnist-small --eps 0.3 --cluster tcp://scheduler:8786
    """
    queries = network or onnx or vnnlib or instances or (target and target.removesuffix(".gz").endswith(".vnnlib"))
    if queries and threat is not None:
        raise InputError("--threat is for images; a query says itself what inputs it is about")
    if cluster is not None and (queries or jobs is not None):
        raise InputError("--cluster is for images, and instead of --jobs; leave one of them out")
    if device is not None and (queries or cluster is not None):
        raise InputError("--device is for images on this machine: queries and clusters run on CPUs; leave it out")
    if network or (target is not None and target.removesuffix(".gz").endswith(".vnnlib")):
        from surebound.cli.verify_query import run_standard

        query = Path(_needed(target, "the query file"))
        run_standard(query, network or [], timeout, serialise_assignments, seed, certificates, explain=explain)
    elif onnx is not None or vnnlib is not None:
        from surebound.cli.verify_query import run_pair

        if onnx is None or vnnlib is None:
            raise InputError("--onnx and --vnnlib go together; give both")
        run_pair(onnx, vnnlib, timeout, result_file, seed, certificates, explain=explain)
    elif instances is not None:
        from surebound.cli.verify_instances import run_list

        run_list(instances, onnx_dir, out, mix, form, certificates)
    else:
        from surebound.cli.verify_images import ImageRequest, run_images

        request = ImageRequest(
            target=_needed(target, "a query or a network"),
            eps=eps if threat else _needed(eps, "--eps (or --threat)"),
            threat=threat,
            cascade=cascade,
            tighten=tighten,
            first=first,
            weights=weights,
            data=data,
            data_dir=data_dir,
            device=device,
            clip=clip,
            out=out,
            certificates=certificates,
            jobs=jobs,
            cluster=cluster,
            timeout=timeout,
            mix=mix,
            seed=seed,
            form=form,
            fail_under=fail_under,
            explain=explain,
        )
        run_images(request)


def _needed(value: str | None, what: str) -> str:
    if value is None:
        raise InputError(f"{what} is missing; `surebound verify --help` shows what goes together")
    return value
