"""Arguments and options that several commands share: one spelling, one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.output import Format
from surebound.errors import InputError


def _hush(value: bool) -> bool:
    from surebound.experiment.live import quiet

    quiet.set(value)
    return value


NET_HELP = "A run directory, an ONNX file, a packaged network's name, or PACKAGE.MODULE:FACTORY."

Target = Annotated[str, typer.Argument(metavar="NET", help=NET_HELP, show_default=False)]
Weights = Annotated[Path | None, typer.Option("--weights", help="A safetensors file to load into the network.")]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="A dataset's name or a file of arrays, .npz or .safetensors (default: the network's own).",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where datasets are kept (default: the user's cache).", envvar="SUREBOUND_DATA"),
]
Device = Annotated[
    str | None, typer.Option(help="Where the network runs: cpu, cuda, cuda:1 (default: the CPU).", show_default=False)
]
Clip = Annotated[
    tuple[float, float] | None,
    typer.Option(help="Range of valid inputs; the ball is cut to it (default: the run's own, else 0 1)."),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no notes; results and errors only.", callback=_hush)
]
ThreatName = Annotated[
    str | None,
    typer.Option(
        "--threat",
        help="Instead of --eps, NAME:SIZE: linf:8/255, l2:0.5, l1:1, l0:1, patch:3 (pixels), brightness:0.1, "
        "contrast:0.2, gamma:0.2, hue:20deg, blur:0.5, rotation:5deg, translation:2 (pixels), scaling:0.1; "
        "changes may be combined: rotation:5deg+blur:0.5.",
        show_default=False,
    ),
]
First = Annotated[int | None, typer.Option(min=1, help="The first N test images (default: all).")]
Indices = Annotated[list[int] | None, typer.Option(help="An image by its number; may be repeated.")]
Form = Annotated[
    Format, typer.Option("--format", metavar="FORM", help="How to write the table: table, markdown, csv or json.")
]


def refuse_device(device: str | None, what: str) -> None:
    """Refuse any device but the CPU where ``what`` is done on the CPU only."""
    if device is None:
        return
    from surebound.experiment.run import device_of

    if device_of(device).type != "cpu":
        raise InputError(f"--device {device}: {what} on the CPU; leave --device out")
