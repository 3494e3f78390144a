"""Networks with a secret, and stages that misbehave, for tests in several processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from surebound.search.question import Finding, Proof, Questions, margins_of, nothing
from surebound.search.stages import Stage
from surebound.search.workspace import Workspace


def needle(dimensions: int = 3, at: float = 0.83, width: float = 0.002) -> nn.Sequential:
    """Label 0 everywhere but in a tiny cube, outside of which every gradient is 0: gradient search is blind.

    Each coordinate has a bump relu(x-a) - 2 relu(x-b) + relu(x-c), scaled to height 1; the last ReLU lets
    only the sum of all bumps through. It is the situation of figure 1 of Gowal et al. 2018.
    """
    hidden, total, last = nn.Linear(dimensions, 3 * dimensions), nn.Linear(3 * dimensions, 1), nn.Linear(1, 2)
    with torch.no_grad():
        hidden.weight.zero_()
        total.weight.zero_()
        for d in range(dimensions):
            for j, (offset, weight) in enumerate(((-width, 1.0), (0.0, -2.0), (width, 1.0))):
                hidden.weight[3 * d + j, d] = 1.0
                hidden.bias[3 * d + j] = -(at + offset)
                total.weight[0, 3 * d + j] = weight / width
        total.bias.fill_(-(dimensions - 0.5))
        last.weight.copy_(torch.tensor([[0.0], [4.0]]))
        last.bias.copy_(torch.tensor([0.5, 0.0]))
    return nn.Sequential(hidden, nn.ReLU(), total, nn.ReLU(), last).requires_grad_(False).eval()


def steep(scale: float = 1.0) -> nn.Sequential:
    """z = (scale * x0, scale * x1): robust within |x0 - x1| / 2."""
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data.copy_(scale * torch.eye(2))
    return nn.Sequential(layer).requires_grad_(False).eval()


@dataclasses.dataclass(frozen=True)
class Misbehave(Stage):
    """Does something bad to images whose first pixel is below 0.01, after noting that it was asked."""

    name: ClassVar[str] = "misbehave"
    chunk: ClassVar[int] = 4
    how: str = "raise"
    log: str = ""

    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        poisoned = questions.region.x.flatten(1)[:, 0] < 0.01
        if bool(poisoned.any()):
            with Path(self.log).open("a") as file:
                file.write("x")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exit":
                os._exit(7)
            raise RuntimeError("poison\nwith details")
        return nothing(len(questions))


@dataclasses.dataclass(frozen=True)
class Certain(Stage):
    """Says that everything is robust: a decision without tracing a network."""

    name: ClassVar[str] = "certain"
    chunk: ClassVar[int] = 1

    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        return margins_of(torch.full_like(questions.margins, -1.0), proof=Proof.TOLERANCE)


@dataclasses.dataclass(frozen=True)
class Slow(Stage):
    """Takes its time over every example and finds nothing."""

    name: ClassVar[str] = "slow"
    chunk: ClassVar[int] = 1
    seconds: float = 0.1

    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        time.sleep(self.seconds)
        return nothing(len(questions))


@dataclasses.dataclass(frozen=True)
class Liar(Stage):
    """Claims a witness that is none, and bounds that are NaN."""

    name: ClassVar[str] = "liar"

    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        nan = torch.full((questions.margins.shape[1],), torch.nan)
        return [Finding(margins=nan, proof=Proof.DEPLOYED, witness=x + 100) for x in questions.region.x]
