"""The paper's runtime paragraph: a step of every training method on the small net, as ratios to nominal.

The paper, on a GPU and per epoch: 1 nominal, 2.3 IBP, 5.7 adversarial, 80 Wong et al. with 50 projections. Steps of one
run in the middle of training (full radius 0.1, kappa 1/2), batch 100; the linear bounds at full weight (beta 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

import surebound as sb
from benchmarks.bench_training import loop_for, megabytes
from benchmarks.common import Benchmark, Measure, Race
from surebound.train.methods import (
    CCIBP,
    CROWNIBP,
    IBP,
    MTLIBP,
    SABR,
    TAPS,
    Adversarial,
    Dvijotham,
    ExpIBP,
    Method,
    Mirman,
    MixTrain,
    Nominal,
    Raghunathan,
    Wong,
    Xiao,
)
from surebound.zoo.architecture import NETS

METHODS: dict[str, Method] = {
    "nominal": Nominal(),
    "IBP": IBP(),
    "adversarial": Adversarial(),
    "CROWN-IBP fused": CROWNIBP(beta_final=1.0),
    "CROWN-IBP": CROWNIBP(beta_final=1.0, fused=False),
    "Wong 50": Wong(),
    "MTL-IBP": MTLIBP(),
    "CC-IBP": CCIBP(),
    "Exp-IBP": ExpIBP(),
    "SABR": SABR(),
    "TAPS": TAPS(),
}
QUOTED: dict[str, Method] = {
    "nominal": Nominal(),
    "Mirman, 32 inputs": Mirman(),
    "MixTrain, 5 examples": MixTrain(),
    "Dvijotham": Dvijotham(),
    "Xiao": Xiao(),
}
"""The methods that the paper quotes, as their presets train them."""
LIMITS = {"CROWN-IBP fused / nominal": 6.0, "CROWN-IBP / nominal": 10.0, "Wong 50 / nominal": 20.0}
CEILING = 1 << 27


def benchmarks() -> Iterator[Benchmark]:
    """New networks, a network trained for 0.4, exact dual bounds where they are affordable, and memory."""
    yield Race("small, new", _steps(sb.models.small), LIMITS)
    yield Race("small, trained", _steps(partial(sb.load, "mnist-small-ibp-0.4")), LIMITS)
    yield Race("small, methods that the paper quotes", _steps(sb.models.small, QUOTED))
    yield Race("fc500", _steps(partial(NETS["fc500"]), {"nominal": Nominal(), "Raghunathan": Raghunathan()}))
    for name, method in (
        ("CROWN-IBP", METHODS["CROWN-IBP"]),
        ("Wong 50", Wong()),
        ("Wong 50, ceiling 128 MB", Wong(memory=CEILING)),
    ):
        step = loop_for(sb.models.small(), method, 100).advance
        yield Measure(f"small: {name}, peak memory", "MB", partial(megabytes, step), times=1)
    half = partial(sb.models.cnn5, (1, 28, 28), width=32)
    expressive = {name: METHODS[name] for name in ("nominal", "IBP", "MTL-IBP", "SABR")}
    yield Race("CNN5 at half width, batch 128", _steps(half, expressive, 128))
    exact = {"nominal": Nominal(), "Wong exact": Wong(projections=0)}
    yield Race("small, batch 2", _steps(sb.models.small, exact, 2))


def _steps(
    build: Callable[[], nn.Module], methods: dict[str, Method] | None = None, batch: int = 100
) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    return {name: loop_for(build(), method, batch).advance for name, method in (methods or METHODS).items()}
