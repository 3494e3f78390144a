"""metrics.jsonl, one JSON object a line, and TensorBoard events when that package is installed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surebound.errors import RunError
from surebound.train.checkpoint import replace_text
from surebound.train.evaluate import Errors
from surebound.train.observe import Observer, Progress

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class MetricsFile(Observer):
    """Appends what the loop reports. On resume, lines of steps that will be done again are dropped."""

    def __init__(self, path: Path, tensorboard: Path | None = None) -> None:
        self.path = path
        self._board = _summary_writer(tensorboard) if tensorboard is not None else None

    def started(self, step: int, steps: int) -> None:
        """Forget what lies after `step`: those steps are about to be repeated."""
        if not self.path.exists():
            return
        kept = [line for line in self.path.read_text(encoding="utf-8").splitlines(True) if _step_of(line) <= step]
        replace_text(self.path, "".join(kept))

    def progressed(self, progress: Progress) -> None:
        self._append({"kind": "training", **progress.record()})
        self._plot(progress.step, {f"training/{k}": v for k, v in progress.record().items() if k != "step"})

    def evaluated(self, step: int, errors: Errors) -> None:
        self._append({"kind": "evaluation", "step": step, **errors.record()})
        values: dict[str, object] = {"evaluation/clean_error": errors.clean}
        values |= {f"evaluation/verified_error_{float(r):.4g}": v for r, v in errors.verified.items()}
        values |= {f"evaluation/pgd_error_{float(r):.4g}": v for r, v in errors.attacked.items()}
        self._plot(step, values)

    def close(self) -> None:
        """Flush the events."""
        if self._board is not None:
            self._board.close()

    def _append(self, record: dict[str, object]) -> None:
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise RunError(f"could not write {self.path}: {error}; free some space and resume the run") from error

    def _plot(self, step: int, values: dict[str, object]) -> None:
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file; a last line cut short by a crash is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return records


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # cut short by a crash


def _summary_writer(directory: Path) -> SummaryWriter | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory))
