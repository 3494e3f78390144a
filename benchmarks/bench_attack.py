"""One step of an attack against one forward and backward pass of the network, per live example."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

import surebound as sb
from benchmarks.common import Benchmark, Measure, Race, seconds
from surebound.attack import attack
from surebound.attack.methods import PGD
from surebound.region import LinfBall

STEPS = 60
SHAPE = (1, 28, 28)


def benchmarks() -> Iterator[Benchmark]:
    """Whole attacks of 60 steps on examples that do not fall, their clean pass and re-check included.

    The limit is for a full batch; a step of few examples pays about 0.4 ms for its bookkeeping besides.
    """
    model = sb.models.small().eval()
    for batch, limit in ((128, 1.1), (8, None)):
        x = torch.rand(batch, *SHAPE)
        yield Race(
            f"small, {batch} examples, {STEPS} steps",
            {
                "forward and backward": partial(passes, model, x),
                "PGD": partial(search, model, x),
            },
            {} if limit is None else {"PGD / forward and backward": limit},
        )
    yield Measure("small: three in four fall at once / nothing falls", "x", dropping, limit=0.4)


def passes(model: nn.Module, x: Tensor) -> None:
    """The baseline: as many gradients with respect to the input as the attack has steps."""
    for _ in range(STEPS):
        leaf = x.detach().requires_grad_(True)
        torch.autograd.grad(model(leaf).max(1).values.sum(), leaf)


def search(model: nn.Module, x: Tensor) -> None:
    """The attack, on a specification that no input violates: nothing drops out."""
    attack(
        model,
        LinfBall(x, "3/10", clip=(0, 1)),
        None,
        PGD(STEPS, 1),
        spec=sb.LinearSpec(torch.eye(10), torch.full((10,), -1e6)),
    )


def dropping() -> float:
    """Time of an attack under which three examples in four fall at once, against one without any that fall."""
    model, x = sb.models.small().eval(), torch.rand(128, *SHAPE)
    mine, other = torch.eye(10)[:2], torch.eye(10)[2:4]
    rows = (mine - other).expand(128, 2, 10)
    fate = torch.where(torch.arange(128) % 4 > 0, 0.1, -1e6)  # an offset of 0.1 is broken within a step or two
    spec = sb.LinearSpec(rows.contiguous(), fate.unsqueeze(1).expand(128, 2).contiguous())
    falling = seconds(lambda: attack(model, LinfBall(x, "3/10", clip=(0, 1)), None, PGD(STEPS, 1), spec=spec))
    return falling / seconds(partial(search, model, x))
