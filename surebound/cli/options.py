"""Arguments and options that several commands share: one spelling, one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(
        help="A run directory, a packaged network's name, or an import path PACKAGE.MODULE:FACTORY.",
        show_default=False,
    ),
]
Weights = Annotated[
    Path | None, typer.Option("--weights", help="A safetensors file to load into the network.")
]
Data = Annotated[
    str | None,
    typer.Option("--data", help="A dataset's name or a file of arrays (default: the target's own)."),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where datasets are kept.", envvar="SUREBOUND_DATA")
]
