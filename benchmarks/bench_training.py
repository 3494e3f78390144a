"""Training steps of the whole loop (data, loss, backward, Adam) as ratios to nominal; memory; two processes.

`python -m benchmarks.bench_training NET STEPS` is one worker process: it prints the global samples per second.
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
# network, images per step, largest acceptable step of IBP in nominal ones: the paper's 100 images, fewer where a round
# would take too long on two cores
NETS: dict[str, tuple[Callable[..., nn.Module], int, float]] = {
    "small": (sb.models.small, 100, 2.4),
    "medium": (sb.models.medium, 100, 2.4),
    "large": (sb.models.large, 20, 2.8),
}
ON = 0.4  # the share of channels and units that training to a large radius leaves on, about
BATCHES = (16, 64, 256, 1024)
WORKER_BATCH, WORKER_STEPS = 200, 20
LINEAR = 0.9  # of twice one process's speed, two should reach; on two cores that do nothing else


def benchmarks() -> Iterator[Benchmark]:
    """For each of the paper's networks, in the middle of training: full radius, kappa 1/2."""
    for name, (build, batch, limit) in NETS.items():
        steps = contenders(build, batch)
        yield Race(f"{name}, batch {batch}", steps, {"IBP / nominal": limit, "adversarial / nominal": 5.8})
        for method, step in steps.items():
            speed = partial(samples_per_second, step, batch)
            yield Measure(f"{name}, batch {batch}: {method}", "samples/s", speed)
            yield Measure(f"{name}, batch {batch}: {method}, peak memory", "MB", partial(megabytes, step), times=1)
    for name in ("small", "medium"):
        build, batch, _ = NETS[name]
        normed = contenders(partial(build, batch_norm=True), batch)
        yield Race(f"{name} with BatchNorm, batch {batch}", normed)
    yield Race("small, batch 100, curriculum", curriculum())
    for batch in BATCHES:
        pair = {
            "nominal": loop_for(sb.models.small(), Nominal(), batch).advance,
            "IBP": loop_for(sb.models.small(), IBP(), batch).advance,
        }
        yield Race(f"small, batch {batch}", pair)
    for threads in (1, 2):
        yield Measure(f"small, IBP, {threads} threads", "samples/s", partial(with_threads, threads))
    yield Measure("small, IBP: an epoch / its steps", "x", epoch_over_steps, limit=1.05)
    for name in ("small", "medium"):
        for count in (1, 2):
            yield Measure(
                f"{name}, {count} process{'es' * (count > 1)} of 1 thread", "samples/s", partial(workers, name, count)
            )
        yield Measure(f"{name}, twice one process / two of them", "x", partial(shortfall, name), limit=1 / LINEAR)


def contenders(build: Callable[..., nn.Module], batch: int) -> dict[str, Callable[[], object]]:
    """Steps of the methods on fresh networks, and of IBP on one that is mostly off."""
    sparse = f"IBP, {ON:.0%} on"
    return {
        "nominal": loop_for(build(), Nominal(), batch).advance,
        "IBP": loop_for(build(), IBP(), batch).advance,
        sparse: loop_for(switched_off(build()), IBP(), batch).advance,
        "adversarial": loop_for(build(), Adversarial(), batch).advance,
    }


def switched_off(net: nn.Module) -> nn.Module:
    """Biases that leave only a share ON of channels and hidden units on; what is off has no gradient and stays off."""
    layers = [m for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d))]
    with torch.no_grad():
        for layer in layers[:-1]:
            if layer.bias is not None:
                layer.bias[int(ON * layer.bias.shape[0]) :] = -100.0
    return net


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
    phases = {f"kappa {kappa:g}": loop_for(sb.models.small(), IBP(), 100, kappa).advance for kappa in (1.0, 0.5, 0.0)}
    normed = loop_for(sb.models.small(batch_norm=True), IBP(regulariser=BoundRegulariser()), 100, 0.0).advance
    return {**phases, "recommended, kappa 0": normed}


def with_threads(threads: int) -> float:
    """Images per second of IBP steps with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        step = loop_for(sb.models.small(), IBP(), 100).advance
        step()
        return samples_per_second(step, 100, steps=10)
    finally:
        torch.set_num_threads(before)


def epoch_over_steps(steps: int = 40) -> float:
    """The time of a run over one epoch, with data, metrics and reports, in medians of its single steps."""
    images = torch.randint(0, 256, (100 * steps, *SHAPE), dtype=torch.uint8)
    labels = torch.randint(0, 10, (100 * steps,))
    plan = Plan(steps=steps, batch_size=100, eps_train="1/10", kappa_start=0.5, kappa_final=0.5)  # type: ignore[arg-type]
    single = loop_for(sb.models.small(), IBP(), 100).advance
    single()
    times = sorted(seconds(single) for _ in range(steps))
    loop = Loop(Task(sb.models.small(), Split(images, labels), IBP(), plan), Surroundings(log_every=10))
    loop.prepare()
    return seconds(loop.run) / (steps * times[steps // 2])


def samples_per_second(step: Callable[[], object], batch: int, steps: int = 3) -> float:
    """Images per second of a few steps."""
    return steps * batch / seconds(lambda: [step() for _ in range(steps)])


def megabytes(step: Callable[[], object]) -> float:
    """The peak of what one step allocates, beyond weights and optimiser."""
    return peak_bytes(step) / 1e6


def shortfall(name: str) -> float:
    """What two processes would do if they were twice as fast as one, in what they do."""
    return 2 * workers(name, 1) / workers(name, 2)


def workers(name: str, count: int) -> float:
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
            [sys.executable, "-m", "benchmarks.bench_training", name, str(WORKER_STEPS)],
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


def work(name: str, steps: int) -> float:
    """One process of `workers`: global samples per second."""
    torch.set_num_threads(1)
    with process_group() as group:
        loop = loop_for(NETS[name][0](), IBP(), WORKER_BATCH, group=group)
        for _ in range(3):
            loop.advance()
        group.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            loop.advance()
        group.barrier()
        return steps * WORKER_BATCH / (time.perf_counter() - began)


if __name__ == "__main__":
    print(work(sys.argv[1], int(sys.argv[2])))
