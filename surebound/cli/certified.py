"""What the command line says about certificates that were written, and about verdicts that have none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from surebound.cli.notes import note
from surebound.errors import SureboundError

if TYPE_CHECKING:
    from torch import Tensor, nn


def tell_certificates(decided: int, directory: Path, what: str = "verdicts") -> None:
    """Say how many verdicts have a certificate, why the others have none, and what to do with them."""
    from surebound.certificates.archive import entries
    from surebound.certificates.directory import MISSING, missing

    folders = sorted({path.parent for path in directory.rglob(MISSING)})
    note(f"certificates: {len(entries(directory)):,} in {directory}, {decided:,} {what}; surebound check {directory}")
    for why, count in Counter(why for folder in folders for why in missing(folder).values()).most_common():
        note(f"no certificate: {count:,}, {why}")


def write_onnx(model: nn.Module, example: Tensor, path: Path) -> None:
    """Write the network beside its certificates as ONNX, if it can be, for `surebound check` to compare."""
    from surebound.vnnlib.files import write_network

    if path.exists():
        return
    try:
        write_network(model, example, path)
    except SureboundError as error:
        note(f"no {path.name} beside the certificates: {str(error).splitlines()[0]}")
