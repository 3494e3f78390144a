"""The harness: contenders timed in turns, medians with their spread, records by which commits are compared.

A file `bench_*.py` exposes `benchmarks() -> Iterable[Benchmark]` and knows nothing of how they are run.
Absolute times on a shared machine drift by tens of percent within a minute; ratios of interleaved rounds do
not. So the headline numbers are ratios, and every one carries its spread (half the distance between the
quartiles).
"""

from __future__ import annotations

import itertools
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Protocol

import torch

Work = Callable[[], object]


@dataclass(frozen=True)
class Record:
    """One measured number."""

    name: str
    value: float
    unit: str
    spread: float
    limit: float | None = None  # what the number should not exceed
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Is it above its limit, beyond what the spread explains?"""
        return self.limit is not None and not self.value - self.spread <= self.limit

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"versions": dict(self.versions)}


@dataclass(frozen=True)
class Budget:
    """How long to measure: at least `rounds` rounds, then until `seconds` are over."""

    seconds: float = 4.0
    rounds: int = 7
    sample: float = 0.02  # a contender is repeated until one sample lasts this long


class Benchmark(Protocol):
    """Something that can be measured."""

    def measure(self, budget: Budget) -> Iterator[Record]: ...


@dataclass(frozen=True)
class Race:
    """Contenders timed in turns; each is reported in milliseconds and as a ratio to the first.

    `limits` gives the largest acceptable ratio of two contenders: {"bounds / forward": 2.3}. Pairs without
    the first contender are reported too.
    """

    name: str
    contenders: Mapping[str, Work]
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pair in self.limits:
            if not set(pair.split(" / ")) <= set(self.contenders) or " / " not in pair:
                raise ValueError(f"{self.name}: the limit {pair!r} is no `A / B` of {', '.join(self.contenders)}")

    def measure(self, budget: Budget) -> Iterator[Record]:
        repeats = {who: _repeats(work, budget.sample) for who, work in self.contenders.items()}
        times: dict[str, list[float]] = {who: [] for who in self.contenders}
        names = list(self.contenders)
        end = time.perf_counter() + budget.seconds
        for turn in itertools.count():
            if turn >= budget.rounds and time.perf_counter() > end:
                break
            # Rotated, so that nobody always runs on the caches that the same neighbour left.
            for who in names[turn % len(names) :] + names[: turn % len(names)]:
                times[who].append(_time(self.contenders[who], repeats[who]))
        for who in names:
            yield summary(f"{self.name}: {who}", [1e3 * t for t in times[who]], "ms")
        for pair in dict.fromkeys([*(f"{who} / {names[0]}" for who in names[1:]), *self.limits]):
            who, base = pair.split(" / ")
            # Each round's own ratio: a slow second on the machine slows both.
            ratios = [t / b for t, b in zip(times[who], times[base], strict=True)]
            yield summary(f"{self.name}: {pair}", ratios, "x", self.limits.get(pair))


@dataclass(frozen=True)
class Measure:
    """A number that `sample` returns, taken several times."""

    name: str
    unit: str
    sample: Callable[[], float]
    limit: float | None = None
    times: int = 3

    def measure(self, budget: Budget) -> Iterator[Record]:
        yield summary(self.name, [self.sample() for _ in range(self.times)], self.unit, self.limit)


def summary(name: str, samples: Iterable[float], unit: str, limit: float | None = None) -> Record:
    """Median and half the interquartile range."""
    values = sorted(samples)
    spread = 0.0
    if len(values) > 1:
        first, _, third = statistics.quantiles(values, n=4, method="inclusive")
        spread = (third - first) / 2
    return Record(name, statistics.median(values), unit, spread, limit)


def seconds(work: Work) -> float:
    """How long one call takes."""
    return _time(work, 1)


def peak_bytes(work: Work) -> int:
    """The largest number of bytes that tensors made during one call hold at the same time (CPU)."""
    work()  # what is cached for good is not part of the peak
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        work()
    kineto = profile.profiler.kineto_results if profile.profiler is not None else None
    if kineto is None:
        raise RuntimeError("the profiler recorded nothing; this build of PyTorch cannot measure memory")
    events = sorted((e for e in kineto.events() if e.name() == "[memory]"), key=lambda e: e.start_ns())
    return max(itertools.accumulate((int(e.nbytes()) for e in events), initial=0))


def versions(threads: int) -> dict[str, str]:
    """What the numbers depend on."""
    return {
        "surebound": metadata.version("surebound"),
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "threads": str(threads),
    }


def _repeats(work: Work, sample: float) -> int:
    work()  # the first call traces, allocates and picks kernels
    return max(1, round(sample / max(_time(work, 1), 1e-7)))


def _time(work: Work, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def _commit() -> str:
    """The commit, marked with + when the sources differ from it."""
    here = Path(__file__).parent
    try:
        name = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
        dirty = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=here, check=False).returncode != 0
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + "+" * dirty


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
