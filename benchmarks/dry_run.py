"""ImageNet 64x64 at full shape on generated data: what a training of the paper's network costs, projected from parts.

`python -m benchmarks.dry_run --seconds 600` writes a few hundred generated images in the published format, trains
WRN-10-10 with 1,000 classes on parts of the paper's batch until the seconds (of the processor) are over, bounds
generated validation images, and prints one JSON object. A whole batch is 1,024 images; parts cost the same each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from surebound import data
from surebound.data.fake import write_imagenet64
from surebound.experiment.presets import preset
from surebound.experiment.run import Job, job_of
from surebound.numerics import Soundness
from surebound.train.evaluate import measure
from surebound.train.footprint import peak_memory
from surebound.train.loop import Loop

PRESET = "imagenet64-wrn-10-10-ibp-1-255"
EPOCHS, TRAIN, VALIDATION = 160, 1_281_167, 50_000
MACHINES = (1, 8, 64)
LINEAR = 0.9  # of N processes' speed: the goal, not measured here


@dataclass(frozen=True)
class Costs:
    """Seconds of one thread of the processor, medians."""

    part: int
    part_seconds: float
    parts: int  # measured
    update_seconds: float
    bound_seconds: float  # of one image's worst-case margins against all classes

    @property
    def step_seconds(self) -> float:
        """One step of the optimiser over the whole batch."""
        return preset(PRESET).plan.batch_size / self.part * self.part_seconds + self.update_seconds

    def days(self, cores: int) -> float:
        """The paper's schedule on so many cores, without loss."""
        steps = EPOCHS * TRAIN / preset(PRESET).plan.batch_size
        return steps * self.step_seconds / cores / 86_400

    def validation_hours(self, cores: int) -> float:
        """Interval bounds of all validation images."""
        return VALIDATION * self.bound_seconds / cores / 3_600


def main(seconds: float, part: int, images: int) -> dict[str, object]:
    """Measure for about so many seconds, and project."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", data.UnverifiedDataWarning)  # the data are generated, and said to be
        write_imagenet64(folder, train=256, test=max(images, 16))
        config = preset(PRESET)
        plan = replace(config.plan, batch_size=2 * part, accumulate=2)
        job = job_of(replace(config, plan=plan), data.load("imagenet64", folder))
        costs, checkpoint = _training(job, part, seconds, plan.steps - 1)
        costs = replace(costs, bound_seconds=_bounding(job, images))
    return {
        "preset": PRESET,
        "data": "generated",
        "batch": config.plan.batch_size,
        "part": part,
        "parts measured": costs.parts,
        "CPU s a part": costs.part_seconds,
        "CPU s a step": costs.step_seconds,
        "steps an hour and core": 3_600 / costs.step_seconds,
        "peak memory, GB": (peak_memory(torch.device("cpu")) or 0) / 1e9,
        "checkpoint, MB": checkpoint / 1e6,
        "CPU s an image bounded": costs.bound_seconds,
        **{f"days of {EPOCHS} epochs on {n} machines of 2 cores": costs.days(2 * n) / LINEAR for n in MACHINES},
        **{f"hours of {VALIDATION:,} images on {n} machines": costs.validation_hours(2 * n) for n in MACHINES},
    }


def _training(job: Job, part: int, seconds: float, step: int) -> tuple[Costs, int]:
    """Take steps of two parts each at the full radius; also the size of a checkpoint."""
    loop = Loop(job.task)
    loop.prepare()
    job.task.model.train()
    times: list[float] = []
    end = time.process_time() + seconds
    while len(times) < 2 or time.process_time() < end:
        loop.step = step
        times.append(_seconds(loop.advance))
    update = sorted(_seconds(loop.optimiser.step) for _ in range(3))[1]
    state = [*job.task.model.state_dict().values()]
    state += [v for each in loop.optimiser.state.values() for v in each.values() if isinstance(v, torch.Tensor)]
    median = sorted(times[1:])[(len(times) - 1) // 2]  # the first traces
    costs = Costs(part, (median - update) / 2, 2 * (len(times) - 1), update, 0.0)
    return costs, sum(v.numel() * v.element_size() for v in state)


def _bounding(job: Job, images: int) -> float:
    """Bound the margins of a few images against all classes, as evaluation does."""
    held_out = job.task.held_out
    if held_out is None:
        raise RuntimeError("the generated data have no validation images")
    few = replace(job.task.evaluation, images=images, batch_size=images, pgd_steps=0)
    job.task.model.eval()
    took = _seconds(lambda: measure(job.task.model, held_out, few, soundness=Soundness.DEPLOYED, clip=job.task.clip))
    return took / images


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of the processor, for training")
    parser.add_argument("--part", type=int, default=8, help="images worked on at a time")
    parser.add_argument("--images", type=int, default=16, help="validation images to bound")
    given = parser.parse_args()
    print(json.dumps(main(given.seconds, given.part, given.images), indent=1))
