"""Checkpoints: everything the next step depends on, written so that a crash at any moment leaves a whole one.

A checkpoint is a directory `step-00012000` with `weights.safetensors` (parameters and buffers),
`optimiser.safetensors` and `state.json` (step, RNG, best so far). It is filled under a temporary name,
flushed to the disk, and renamed: either all of it is there or nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from surebound.errors import RunError

#: Under this name files keep a hash of what was written: a disk, or a copy, may change a byte.
_SEAL = "sha256"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after `step` steps."""

    step: int
    weights: Mapping[str, Tensor]
    optimiser: Mapping[str, Tensor]
    state: Mapping[str, Any]  # JSON values


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write safetensors with a seal and flush them to the disk. Copies: tied weights are written twice, not refused."""
    kept = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    save_file(kept, path, {_SEAL: seal_of(kept)})
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read safetensors; raise RunError if they have a seal that they do not fit, because a byte of them has changed."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        seal = (file.metadata() or {}).get(_SEAL)
    if seal is not None and seal != seal_of(tensors):
        raise RunError(f"{path} is damaged: its numbers are not those that were written; restore a copy")
    return tensors


def seal_of(tensors: Mapping[str, Tensor]) -> str:
    """Hash names, types, shapes and numbers."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + b"\0")
        found.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write text and flush it to the disk."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Flush a directory's entries, so that a rename survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_text(path: Path, text: str) -> None:
    """Replace a small text file atomically."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        write_text(temporary, text)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"could not write {path}: {error}") from error


def replace_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write safetensors under `path` atomically."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        write_tensors(temporary, tensors)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise RunError(_disk_message(path, error)) from error


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one run: the last `keep`, and the best.

    `latest()` falls back to an older checkpoint when a newer one cannot be read.
    """

    directory: Path
    keep: int = 2

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then drop the oldest ones."""
        path = self._write(self.path(checkpoint.step), checkpoint)
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(self.path(old), ignore_errors=True)
        return path

    def save_best(self, checkpoint: Checkpoint) -> Path:
        """Replace the best checkpoint."""
        return self._write(self.directory / "best", checkpoint)

    def path(self, step: int) -> Path:
        """Return the path of a step's checkpoint."""
        return self.directory / f"step-{step:09d}"

    def steps(self) -> list[int]:
        """List the steps that have a checkpoint, oldest first."""
        names = [p.name for p in self.directory.glob("step-*") if p.is_dir()]
        return sorted(int(name.removeprefix("step-")) for name in names)

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that can be read, or None if there is none at all."""
        problems: list[str] = []
        for step in reversed(self.steps()):
            try:
                return self.read(self.path(step))
            except RunError as error:
                problems.append(str(error))
        if problems:
            raise RunError("no checkpoint can be read: " + "; ".join(problems))
        return None

    def read(self, path: Path) -> Checkpoint:
        """Read one checkpoint directory."""
        try:
            state = _opened((path / "state.json").read_text(encoding="utf-8"))
            weights = read_tensors(path / "weights.safetensors")
            optimiser = read_tensors(path / "optimiser.safetensors")
            return Checkpoint(int(state["step"]), weights, optimiser, state)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"the checkpoint {path} is damaged ({error}); delete it to fall back to an older one"
            ) from error

    def _write(self, final: Path, checkpoint: Checkpoint) -> Path:
        temporary = self.directory / f".{final.name}.partial"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            write_tensors(temporary / "weights.safetensors", checkpoint.weights)
            write_tensors(temporary / "optimiser.safetensors", checkpoint.optimiser)
            write_text(temporary / "state.json", _sealed({**checkpoint.state, "step": checkpoint.step}))
            sync_directory(temporary)
            self._swap(temporary, final)
            sync_directory(self.directory)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise RunError(_disk_message(final, error)) from error
        return final

    def _swap(self, temporary: Path, final: Path) -> None:
        """Move the old directory aside first: none can be renamed over a full one."""
        aside = self.directory / f".{final.name}.old"
        shutil.rmtree(aside, ignore_errors=True)
        if final.exists():
            final.rename(aside)
        temporary.rename(final)
        shutil.rmtree(aside, ignore_errors=True)


def _sealed(state: Mapping[str, Any]) -> str:
    text = json.dumps(state)
    return json.dumps({"state": text, _SEAL: hashlib.sha256(text.encode()).hexdigest()})


def _opened(text: str) -> dict[str, Any]:
    """Return what ``_sealed`` was given; raise ValueError if it is not what was written. Earlier files have no seal."""
    found: dict[str, Any] = json.loads(text)
    if _SEAL not in found:
        return found
    if hashlib.sha256(found["state"].encode()).hexdigest() != found[_SEAL]:
        raise ValueError("state.json is not what was written")
    state: dict[str, Any] = json.loads(found["state"])
    return state


def _disk_message(path: Path, error: BaseException) -> str:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    full = full or "No space left" in str(error)
    remedy = "free some space" if full else "check that the directory is writable"
    return f"could not write {path}: {error}. Nothing half-written was kept; {remedy} and resume the run"


def rng_state(device: torch.device) -> dict[str, str]:
    """Return the global generators as hexadecimal strings, for JSON; user models may draw from them (dropout)."""
    state = {"cpu": torch.get_rng_state().numpy().tobytes().hex()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes().hex()
    return state


def restore_rng(state: Mapping[str, str], device: torch.device) -> None:
    """Set the global generators to what `rng_state` returned."""
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["cpu"]), dtype=torch.uint8))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(torch.frombuffer(bytearray.fromhex(state["cuda"]), dtype=torch.uint8), device)
