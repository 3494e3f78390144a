"""The images that verdicts are about, from the data that a run names, and the names of their classes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from surebound.errors import SureboundError
from surebound.experiment.arrays import read_arrays
from surebound.report.source import ReportedRun
from surebound.train.examples import Examples
from surebound.verify import Record
from surebound.verify.identity import example_hash

OTHERS = "Some images are left out: the data found are not those that were verified."


def find_examples(name: str | None, data_dir: Path | None) -> tuple[Examples | None, str]:
    """Return the test images of a dataset or a file of arrays, or None and why there are none."""
    if name is None:
        return None, "The original images are not known, so only counterexamples are shown."
    try:
        if Path(name).suffix in (".npz", ".safetensors"):
            return read_arrays(Path(name), None), ""
        from surebound import data

        return data.load(name, data_dir).test, ""
    except SureboundError as error:
        first = str(error).splitlines()[0]
        return None, f"The original images could not be read, so only counterexamples are shown ({first})."


def original_of(record: Record, images: Examples | None) -> Tensor | None:
    """Return the image (C, H, W) of a record; None if it is not there, or is not the one that was verified."""
    if images is None or record.index >= len(images):
        return None
    x, y = images.batch(torch.tensor([record.index]))
    if record.example and example_hash(x[0], int(y[0])) != record.example:
        return None
    return x[0]


def class_names(run: ReportedRun) -> tuple[str, ...]:
    """Names of the classes, where a dataset has better ones than numbers."""
    from surebound.data.source import SOURCES

    source = SOURCES.get(run.data or "")
    return tuple(source.classes) if source is not None else ()
