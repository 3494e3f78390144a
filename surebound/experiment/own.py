"""Data that were given in Python: kept beside the run, so that commands find them again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from surebound.data.types import Split
from surebound.errors import RunError
from surebound.experiment.rundir import RunDirectory
from surebound.train.checkpoint import replace_file
from surebound.train.examples import Examples, TensorExamples
from surebound.train.task import Task

MOST_BYTES = 2**29  # of tensors that a run keeps a copy of; more stay with the caller
_PARTS = ("train", "held_out")


def digest(task: Task) -> str:
    """Return the sha256 of a task's inputs and labels, shapes and types included."""
    found = hashlib.sha256()
    for tensor in (part for name in _PARTS for part in _tensors(task, name)):
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}\n".encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def keep(run: RunDirectory, task: Task) -> None:
    """Write the tensors to data/train.safetensors and data/held_out.safetensors, unless they are too many."""
    parts = {name: _tensors(task, name) for name in _PARTS}
    if sum(tensor.nbytes for part in parts.values() for tensor in part) > MOST_BYTES:
        return
    for name, part in parts.items():
        if part:
            path = _path(run.path, name)
            path.parent.mkdir(exist_ok=True)
            replace_file(path, {"images": part[0], "labels": part[1]})


def held_out_file(run: Path) -> Path | None:
    """Return the file of the held-out examples, where the run keeps one: `--data` can read it."""
    path = _path(run, "held_out")
    return path if path.is_file() else None


def read(run: Path, device: torch.device) -> tuple[Examples, Examples | None]:
    """Read the training and the held-out examples that `keep` wrote."""
    if not _path(run, "train").is_file():
        raise RunError(
            f"the training data of {run} were given in Python and are too many to be kept in the run: "
            "go on where they are, with the same call of sb.train and out=... the same directory"
        )
    held_out = held_out_file(run)
    return _examples(_path(run, "train"), device), None if held_out is None else _examples(held_out, device)


def _path(run: Path, part: str) -> Path:
    return run / "data" / f"{part}.safetensors"


def _tensors(task: Task, part: str) -> tuple[Tensor, ...]:
    """Inputs (N, ...) and labels (N,) of a part; nothing for memory-mapped images, which are in files already."""
    examples = task.train if part == "train" else task.held_out
    inputs = getattr(examples, "images", None) if isinstance(examples, Split) else getattr(examples, "inputs", None)
    return (inputs, examples.labels) if examples is not None and isinstance(inputs, Tensor) else ()


def _examples(path: Path, device: torch.device) -> Examples:
    try:
        arrays = load_file(path, device=str(device))
        inputs, labels = arrays["images"], arrays["labels"]
    except (OSError, SafetensorError, KeyError) as error:
        raise RunError(f"the run's data {path} cannot be read: {error}") from error
    images = inputs.dim() == 4 and inputs.dtype in (torch.uint8, torch.float32)
    return Split(inputs, labels) if images else TensorExamples(inputs, labels)
