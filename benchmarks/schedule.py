"""The mean step of whole trainings, in ordinary steps of the same run, from the speeds that the run has logged.

    python -m benchmarks.schedule runs/mnist-small-ibp-0.4 ...

In the warm-up (kappa 1, radius 0) a step is an ordinary one: no bounds. The unit is its speed there. The schedule is
cut into thirty parts, each of which counts with the median of its speeds, or with the speed of its quietest tenth,
which other programs on the machine disturbed least. Where the two differ much, the machine was too busy to tell.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from surebound.experiment.metrics import read_metrics

PARTS = 30


@dataclass(frozen=True)
class Speed:
    """One line of a run's log."""

    step: int
    images_per_second: float
    ordinary: bool  # a step without bounds


def speeds(run: Path) -> list[Speed]:
    """The logged speeds of a run, in order."""
    lines = (m for m in read_metrics(run / "metrics.jsonl") if m.get("samples_per_second"))
    return [Speed(m["step"], m["samples_per_second"], m.get("kappa") == 1 and m.get("epsilon") == 0) for m in lines]


def mean_step(logged: Sequence[Speed], share: float) -> float:
    """The mean time of a step over the whole schedule in ordinary steps; speeds are taken at this quantile.

    >>> log = [Speed(1, 100.0, True), Speed(2, 100.0, True), Speed(3, 50.0, False), Speed(4, 25.0, False)]
    >>> mean_step(log, 0.5)  # (1 + 1 + 2 + 4) / 4
    2.0
    """
    unit = [s.images_per_second for s in logged if s.ordinary]
    if not unit:
        raise ValueError("the run has no warm-up with kappa 1 and radius 0: there is no ordinary step to compare with")
    last = logged[-1].step
    parts: dict[int, list[float]] = {}
    for s in logged:
        parts.setdefault(min(PARTS - 1, PARTS * (s.step - 1) // last), []).append(s.images_per_second)
    return _quantile(unit, share) * statistics.fmean(1 / _quantile(v, share) for v in parts.values())


def _quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args(arguments).runs:
        logged = speeds(run)
        middle, quiet = (mean_step(logged, share) for share in (0.5, 0.9))
        print(
            f"{run.name}: {logged[-1].step} steps, mean step {middle:.2f} ordinary ones (quietest tenths: {quiet:.2f})"
        )


if __name__ == "__main__":
    main()
