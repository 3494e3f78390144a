"""The mean step of a schedule in nominal steps, by the CPU clock of one thread: for machines that are busy.

    python -m benchmarks.mean_step mnist-medium-ibp-0.4 --steps 2000 --data-dir DATA

Trains as `surebound train` does, without evaluations, and takes a nominal step of a network of the same shape in turns
with every so many of its steps. A schedule shortened by --steps keeps its proportions, but its network has had less
time to switch channels off: the mean of the whole one is lower.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from surebound import data
from surebound.experiment.config import Config
from surebound.experiment.nets import build_net
from surebound.experiment.overrides import Overrides
from surebound.experiment.presets import preset
from surebound.train.loop import Loop
from surebound.train.methods import Nominal
from surebound.train.task import Task

PARTS = 20  # reports


def loops(config: Config, dataset: data.Dataset) -> tuple[Loop, Loop]:
    """The schedule's loop and a nominal one, ready to take steps."""
    model = build_net(config.model, dataset, config.plan.seed)
    plain = copy.deepcopy(model)
    nominal = dataclasses.replace(config.plan, kappa_start=1.0, kappa_final=1.0)
    pair = (
        Loop(Task(model, dataset.train, config.method, config.plan)),
        Loop(Task(plain, dataset.train, Nominal(), nominal)),
    )
    for loop in pair:
        loop.prepare()
        loop.task.model.train()
    return pair


def seconds_of(loop: Loop) -> float:
    """CPU time of one step."""
    began = time.process_time()
    loop.advance()
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("preset")
    parser.add_argument("--steps", type=int, help="default: the preset's")
    parser.add_argument("--kappa-final", type=float, help="default: the preset's")
    parser.add_argument("--every", type=int, default=10, help="steps between two nominal ones")
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    config = Overrides(steps=given.steps, kappa_final=given.kappa_final).apply(preset(given.preset))
    trained, nominal = loops(config, data.load(config.data.name, given.data_dir))
    steps = config.plan.steps
    means: list[float] = []
    for part in range(PARTS):
        own: list[float] = []
        unit: list[float] = []
        for step in range(steps * part // PARTS, steps * (part + 1) // PARTS):
            own.append(seconds_of(trained))
            if step % given.every == 0:
                unit.append(seconds_of(nominal))
        means.append(statistics.fmean(own) / statistics.fmean(unit))
        at = trained.step - 1
        print(
            f"step {trained.step} of {steps}: epsilon {trained.epsilon.at(at):.3g}, kappa {trained.kappa.at(at):.3g}, "
            f"{statistics.median(own) / statistics.median(unit):.2f} nominal steps "
            f"({1e3 * statistics.median(unit):.0f} ms), mean so far {statistics.fmean(means):.3f}",
            flush=True,
        )
        loss = trained.window.read()
        print("  " + ", ".join(f"{name} {value:.3f}" for name, value in loss.items()), flush=True)


if __name__ == "__main__":
    main()
