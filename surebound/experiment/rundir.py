"""The run directory: everything a training run is, leaves behind and resumes from.

config.toml        what was asked
environment.json   what it ran on
metrics.jsonl      what happened (and events/ for TensorBoard)
checkpoints/       the last ones and the best
final.safetensors  the weights after the last step
results.json       error rates of the final weights, with rounding control
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surebound.errors import ConfigError, RunError
from surebound.experiment.config import Config
from surebound.train.checkpoint import CheckpointStore, replace_text

#: What is left of a start that was killed before anything of it was there.
UNFINISHED = ".config.toml.partial"


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run, and the small files in it."""

    path: Path

    @classmethod
    def create(cls, path: Path, config: Config) -> RunDirectory:
        """A new run; a directory that holds a run already is refused, unless nothing was trained in it yet."""
        run = cls(path)
        if (path / "config.toml").exists():
            if run.begun:
                raise RunError(
                    f"{path} holds a run already: continue it with `surebound resume {path}`, or choose another --out"
                )
            with run.alone():  # it may just have been started by another process
                for name in ("environment.json", "metrics.jsonl"):
                    (path / name).unlink(missing_ok=True)
        elif path.exists() and (not path.is_dir() or any(each.name != UNFINISHED for each in path.iterdir())):
            raise RunError(f"{path} is not an empty directory; choose another --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create the run directory {path}: {error}") from error
        run.write("config.toml", config.to_toml())
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run."""
        if not (path / "config.toml").is_file():
            raise RunError(f"{path} is no run directory: it has no config.toml")
        return cls(path)

    @property
    def config(self) -> Config:
        """The run's configuration."""
        try:
            return Config.read(self.path / "config.toml")
        except ConfigError as error:
            raise RunError(f"the run cannot be read: {error}") from error

    @property
    def begun(self) -> bool:
        """Whether there are weights: a checkpoint, or the final ones."""
        return self.final.exists() or bool(self.checkpoints().steps())

    @property
    def final(self) -> Path:
        """The final weights; there once the run is finished."""
        return self.path / "final.safetensors"

    @property
    def metrics(self) -> Path:
        """The metrics file."""
        return self.path / "metrics.jsonl"

    def checkpoints(self, keep: int = 2) -> CheckpointStore:
        """The run's checkpoints."""
        return CheckpointStore(self.path / "checkpoints", keep)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Refuse a second process that would train the same run; a killed one leaves nothing behind."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    f"another process is training {self.path}: wait for it, or stop it and "
                    f"`surebound resume {self.path}`"
                ) from None
            yield
        finally:
            os.close(handle)

    def weights(self) -> Path:
        """The final weights or, of an unfinished run, those of the last checkpoint."""
        if self.final.is_file():
            return self.final
        steps = self.checkpoints().steps()
        if not steps:
            raise RunError(f"the run {self.path} has neither final weights nor a checkpoint yet")
        return self.path / "checkpoints" / f"step-{steps[-1]:09d}" / "weights.safetensors"

    def write(self, name: str, text: str) -> None:
        """Replace a small text file atomically."""
        replace_text(self.path / name, text)

    def write_json(self, name: str, record: dict[str, Any]) -> None:
        """Replace a JSON file atomically."""
        self.write(name, json.dumps(record, indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of the run, or an empty table if there is none yet."""
        try:
            record: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {self.path / name}: {error}") from error
        return record


def fresh_path(config: Config, parent: Path = Path("runs")) -> Path:
    """A directory name for a new run: time, preset and seed."""
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    return parent / f"{stamp}-{config.name}-seed{config.plan.seed}"
