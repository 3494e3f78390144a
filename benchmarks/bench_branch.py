"""Branch and bound: a fixed amount of search, sub-problems in batches against one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

import surebound as sb
from benchmarks.common import Benchmark, Race
from surebound.region import LinfBall
from surebound.search.branch_and_bound import Options
from surebound.search.complete import search
from surebound.search.labels import Labels
from surebound.search.question import Questions
from surebound.search.workspace import Workspace

EXAMPLES = 1


def benchmarks() -> Iterator[Benchmark]:
    """The paper's small architecture, untrained: its instances are hard, so the search ends at its ceiling."""
    net, x, labels = problem()
    workspace = Workspace(net)
    workspace.program(x)
    yield Race(
        "small, one example, until 120 sub-problems are open",
        {
            "in batches": partial(decide, workspace, x, labels, Options(seconds=600, domains=120)),
            "one by one": partial(decide, workspace, x, labels, Options(seconds=600, domains=120, batch=1)),
            "first candidate": partial(decide, workspace, x, labels, Options(seconds=600, domains=120, candidates=1)),
        },
    )


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    """A network with small weights and images that it classifies, by whatever margin."""
    torch.manual_seed(0)
    net = sb.models.small().eval().requires_grad_(False)
    x = torch.rand(EXAMPLES, 1, 28, 28)
    return net, x, net(x).argmax(1)


def questions(workspace: Workspace, x: Tensor, labels: Tensor) -> Questions:
    """Nothing is known of any class but the true one."""
    margins = torch.full((len(x), 10), torch.inf, dtype=torch.float64).scatter(1, labels.unsqueeze(1), -torch.inf)
    asked = Labels(workspace, labels, labels, 10)
    return Questions(LinfBall(x, "1/100", (0, 1)), asked, margins, torch.arange(len(x)))


def decide(workspace: Workspace, x: Tensor, labels: Tensor, options: Options) -> None:
    """One search."""
    search(questions(workspace, x, labels).one(0), workspace, options)
