"""IBP steps of the paper's ImageNet network: as ratios to nominal, time and memory, few and many classes.

A round with 32 images takes minutes on one core; `make bench ARGS="wide --seconds 1"` takes the fewest that count.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

import torch

import surebound as sb
from benchmarks.common import Benchmark, Measure, Race, Work, peak_bytes
from surebound.data import Split
from surebound.train.loop import Loop
from surebound.train.methods import IBP, Method, Nominal
from surebound.train.plan import Plan
from surebound.train.task import Surroundings, Task

SHAPE = (3, 56, 56)  # what is left of 64x64 images by the paper's random crops
STEP, MEMORY = 2.6, 2.5  # of a nominal step's, at most


def benchmarks() -> Iterator[Benchmark]:
    """With 10 and with 1,000 classes, 4 and 32 images at a time, with BatchNorm and without."""
    for classes in (10, 1_000):
        for batch in (4, 32):
            for batch_norm in (False, True):
                name = f"wrn-10-10, {classes:,} classes, batch {batch}{', BatchNorm' * batch_norm}"
                steps = {
                    "nominal": step_of(Nominal(), classes, batch, batch_norm=batch_norm),
                    "IBP": step_of(IBP(), classes, batch, batch_norm=batch_norm),
                }
                yield Race(name, steps, {"IBP / nominal": STEP})
                yield Measure(f"{name}: memory, IBP / nominal", "x", partial(_memory, steps), limit=MEMORY, times=1)


def step_of(method: Method, classes: int, batch: int, *, batch_norm: bool) -> Work:
    """One step of the loop in the middle of training; the network is made when it is first taken."""
    made: list[Work] = []

    def step() -> None:
        if not made:
            made.append(_loop(method, classes, batch, batch_norm=batch_norm).advance)
        made[0]()

    return step


def _loop(method: Method, classes: int, batch: int, *, batch_norm: bool) -> Loop:
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4 * batch, *SHAPE), dtype=torch.uint8, generator=draws)
    labels = torch.randint(0, classes, (4 * batch,), generator=draws)
    plan = Plan(steps=10**9, batch_size=batch, eps_train=Fraction(1, 255), kappa_start=0.5, kappa_final=0.5)
    net = sb.models.wide_resnet_10_10(SHAPE, classes, batch_norm=batch_norm)
    loop = Loop(Task(net, Split(images, labels), method, plan), Surroundings())
    loop.prepare()
    net.train()
    return loop


def _memory(steps: dict[str, Work]) -> float:
    return peak_bytes(steps["IBP"]) / peak_bytes(steps["nominal"])
