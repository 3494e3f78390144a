"""How many threads to compute with.

PyTorch's threads wait for each other by spinning: when another program holds one of the cores, two threads are many
times slower than one. The choice is made once, by measuring, before the first step; the number of threads can change
the last bits of a sum, so a resumed run keeps the number it began with.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from surebound.errors import ConfigError


@dataclass(frozen=True)
class ThreadChoice:
    """A number of threads and, when there is something to say, why."""

    threads: int
    note: str = ""


def available_cpus() -> int:
    """Return the processors this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def choose_threads(requested: int | None = None) -> ThreadChoice:
    """Choose `requested` threads, or as many as help: what the environment says, else 1 or all, whichever is faster."""
    cpus = available_cpus()
    if requested is not None:
        if requested < 1:
            raise ConfigError(f"threads must be at least 1, got {requested}")
        note = f"{requested} threads on {cpus} processors will wait for each other" if requested > cpus else ""
        return ThreadChoice(requested, note)
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return ThreadChoice(max(1, int(os.environ["OMP_NUM_THREADS"])))
    if cpus == 1:
        return ThreadChoice(1)
    one, many = _seconds(1), _seconds(cpus)
    if many > 0.9 * one:
        return ThreadChoice(
            1,
            f"using 1 thread: {cpus} threads took {many / one:.1f} times as long as 1 in a trial, "
            "so another program is probably busy on this machine; --threads overrides",
        )
    return ThreadChoice(cpus)


def _seconds(threads: int) -> float:
    """Measure a small convolution and product with `threads` threads: the median of five times."""
    before = torch.get_num_threads()
    x, w = torch.ones(64, 16, 16, 16), torch.ones(32, 16, 4, 4)
    times = []
    try:
        torch.set_num_threads(threads)
        for _ in range(6):
            start = time.perf_counter()
            y = F.conv2d(x, w)  # (64, 32, 13, 13)
            (y.flatten(1) @ y.flatten(1).T).sum().item()
            times.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return sorted(times[1:])[2]  # the first warms up
