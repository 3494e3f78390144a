"""One step of an attack against one forward and backward pass of the network, per live example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

import surebound as sb
from benchmarks.common import Benchmark, Measure, Race, seconds
from surebound.attack import attack
from surebound.attack.methods import PGD, Sign

NETS: dict[str, tuple[Callable[[], nn.Module], int, tuple[int, int, int]]] = {
    "small, batch 128": (sb.models.small, 128, (1, 28, 28)),
    "small, batch 8": (sb.models.small, 8, (1, 28, 28)),
    "medium, batch 32": (sb.models.medium, 32, (1, 28, 28)),
}
STEPS = 40


def benchmarks() -> Iterator[Benchmark]:
    """Whole attacks of 40 steps on examples that do not fall, their clean pass and re-check included."""
    for name, (build, batch, shape) in NETS.items():
        model, x = build().eval(), torch.rand(batch, *shape)
        spec = never(model)
        yield Race(
            f"{name}, {STEPS} steps",
            {
                "forward and backward": partial(passes, model, x),
                "PGD, Adam": partial(search, model, x, spec, PGD(STEPS, 1)),
                "PGD, sign": partial(search, model, x, spec, PGD(STEPS, 1, rule=Sign())),
            },
            {"PGD, Adam / forward and backward": 1.1, "PGD, sign / forward and backward": 1.1},
        )
    yield Measure("small: what falls drops out", "x", dropping, limit=0.35)


def never(model: nn.Module) -> sb.LinearSpec:
    """A specification that no input violates: nothing drops out."""
    return sb.LinearSpec(torch.eye(10), torch.full((10,), -1e6))


def passes(model: nn.Module, x: Tensor) -> None:
    """The baseline: as many gradients with respect to the input as the attack has steps."""
    for _ in range(STEPS):
        leaf = x.detach().requires_grad_(True)
        torch.autograd.grad(model(leaf).max(1).values.sum(), leaf)


def search(model: nn.Module, x: Tensor, spec: sb.LinearSpec, method: PGD) -> None:
    """The attack."""
    attack(model, x, None, "3/10", method, spec=spec)


def dropping() -> float:
    """Time of an attack under which everything falls at once, against one under which nothing does."""
    model, x = sb.models.small().eval(), torch.rand(128, 1, 28, 28)
    labels = model(x).argmin(1)  # wrong from the start but for a few steps
    labels = torch.where(torch.arange(128) < 96, labels, model(x).argmax(1))
    free = seconds(lambda: attack(model, x, labels, "3/10", PGD(STEPS, 1)))
    return free / seconds(partial(search, model, x, never(model), PGD(STEPS, 1)))
