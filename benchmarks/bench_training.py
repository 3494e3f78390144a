"""Training steps of the whole loop (data, loss, backward, Adam) as ratios to nominal; memory; two processes.

`python -m benchmarks.bench_training STEPS` is one worker process: it prints the global samples per second.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

import surebound as sb
from benchmarks.common import Benchmark, Measure, Race, peak_bytes, seconds
from surebound.data import Split
from surebound.train.distributed import ALONE, Group, process_group
from surebound.train.loop import Loop
from surebound.train.methods import IBP, Adversarial, Method, Nominal
from surebound.train.plan import Plan
from surebound.train.regularise import BoundRegulariser
from surebound.train.task import Surroundings, Task

SHAPE = (1, 28, 28)
# network, images per step: the paper's 100 for small; less where a round would take too long on two cores
NETS: dict[str, tuple[Callable[..., nn.Module], int]] = {
    "small": (sb.models.small, 100),
    "medium": (sb.models.medium, 100),
    "large": (sb.models.large, 10),
}
METHODS: dict[str, Method] = {"nominal": Nominal(), "IBP": IBP(), "adversarial": Adversarial()}
WORKER_BATCH, WORKER_STEPS = 200, 20


def benchmarks() -> Iterator[Benchmark]:
    """For each of the paper's networks, in the middle of training: full radius, kappa 1/2."""
    for name, (build, batch) in NETS.items():
        loops = {method: loop_for(build(), kind, batch) for method, kind in METHODS.items()}
        steps = {method: loop.advance for method, loop in loops.items()}
        yield Race(f"{name}, batch {batch}", steps, {"IBP / nominal": 3.2})
        for method, step in steps.items():
            speed = partial(samples_per_second, step, batch)
            yield Measure(f"{name}, batch {batch}: {method}", "samples/s", speed)
            yield Measure(
                f"{name}, batch {batch}: {method}, peak memory", "MB", partial(megabytes, step), times=1
            )
    yield Race("small, batch 100, curriculum", curriculum())
    yield Measure("small, 1 process of 1 thread", "samples/s", partial(workers, 1))
    yield Measure("small, 2 processes of 1 thread", "samples/s", partial(workers, 2))


def loop_for(
    model: nn.Module, method: Method, batch: int, kappa: float = 0.5, group: Group = ALONE, eps: str = "1/10"
) -> Loop:
    """A loop ready to take steps on random images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4_000, *SHAPE), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (4_000,), generator=generator)
    plan = Plan(steps=10**9, batch_size=batch, eps_train=eps, kappa_start=kappa, kappa_final=kappa)  # type: ignore[arg-type]
    loop = Loop(Task(model, Split(images, labels), method, plan), Surroundings(group=group))
    loop.prepare()
    model.train()
    return loop


def curriculum() -> dict[str, Callable[[], object]]:
    """What a step costs in the phases of the curriculum, and with the recommended recipe's parts."""
    phases = {
        f"kappa {kappa:g}": loop_for(sb.models.small(), IBP(), 100, kappa).advance
        for kappa in (1.0, 0.5, 0.0)
    }
    normed = loop_for(sb.models.small(batch_norm=True), IBP(regulariser=BoundRegulariser()), 100, 0.0).advance
    return {**phases, "recommended, kappa 0": normed}


def samples_per_second(step: Callable[[], object], batch: int, steps: int = 3) -> float:
    """Images per second of a few steps."""
    return steps * batch / seconds(lambda: [step() for _ in range(steps)])


def megabytes(step: Callable[[], object]) -> float:
    """The peak of what one step allocates, beyond weights and optimiser."""
    return peak_bytes(step) / 1e6


def workers(count: int) -> float:
    """Samples per second of `count` processes with one thread each, sharing batches of WORKER_BATCH."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bench_training", str(WORKER_STEPS)],
            env={**os.environ, **shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError("a worker process failed; its message is above")
    return float(outputs[0].split()[-1])


def work(steps: int) -> float:
    """One process of `workers`: global samples per second."""
    torch.set_num_threads(1)
    with process_group() as group:
        loop = loop_for(sb.models.small(), IBP(), WORKER_BATCH, group=group)
        for _ in range(3):
            loop.advance()
        group.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            loop.advance()
        group.barrier()
        return steps * WORKER_BATCH / (time.perf_counter() - began)


if __name__ == "__main__":
    print(work(int(sys.argv[1])))
