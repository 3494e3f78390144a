"""`surebound export`: our networks and questions as ONNX and VNN-LIB files, for everybody's verifiers."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.options import Clip, Data, DataDir, Device, Target, Weights, refuse_device
from surebound.errors import InputError


class Version(enum.StrEnum):
    """Versions of VNN-LIB that can be written."""

    ONE = "1.0"
    TWO = "2.0"


class Element(enum.StrEnum):
    """What the queries are about: float32 executions, or exact-real results."""

    FLOAT32 = "float32"
    REAL = "real"


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    target: Target,
    onnx: Annotated[Path | None, typer.Option(help="Write the network to this file.")] = None,
    vnnlib_dir: Annotated[Path | None, typer.Option(help="Write one query per test image to this directory.")] = None,
    eps: Annotated[str | None, typer.Option(help="Radius of the queries, kept exact: 0.3, 8/255.")] = None,
    first: Annotated[int | None, typer.Option(min=1, help="Queries for the first N test images (default: 10).")] = None,
    index: Annotated[
        list[int] | None, typer.Option(help="A query for an image by its number; may be repeated.")
    ] = None,
    version: Annotated[Version, typer.Option("--vnnlib-version", help="Version of the queries.")] = Version.TWO,
    element: Annotated[Element, typer.Option("--element-type", help="What the queries ask about.")] = Element.FLOAT32,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds in the list of instances.")] = 60,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = None,
    clip: Clip = None,
) -> None:
    """Write a network as ONNX, and the question whether labels stay within balls as VNN-LIB queries.

    The file is read back and compared with onnxruntime before it is kept. With --onnx and --vnnlib-dir a list
    instances.csv is written beside the queries, which `surebound verify --instances` takes. unsat means robust.

    Examples:

      surebound export runs/mnist-small --onnx net.onnx

      surebound export runs/mnist-small --onnx net.onnx --vnnlib-dir props --eps 0.1 --first 20
    """
    import torch

    from surebound.cli.bounds import choose
    from surebound.experiment.target import load_target
    from surebound.vnnlib.files import write_network, write_questions

    refuse_device(device, "files are written, and compared with onnxruntime,")
    if onnx is None and vnnlib_dir is None:
        raise InputError("nothing to write: give --onnx FILE, --vnnlib-dir DIR, or both")
    if vnnlib_dir is not None and eps is None:
        raise InputError("--vnnlib-dir needs --eps, the radius of the queries")
    found = load_target(target, weights=weights, data=data, data_dir=data_dir, clip=clip)
    split = found.test()
    chosen = choose(len(split), index or [], first if index else first or 10)
    images, labels = split.batch(torch.tensor(chosen))
    if onnx is not None:
        write_network(found.model, images[:1], onnx)
        typer.echo(f"network: {onnx}", err=True)
    if vnnlib_dir is not None and eps is not None:
        with torch.no_grad():
            classes = int(found.model(images[:1]).shape[1])
        count = write_questions(
            images, labels, classes, eps, vnnlib_dir, version.value, element.value, onnx, timeout, chosen, found.clip
        )
        typer.echo(f"queries: {count} in {vnnlib_dir}", err=True)
