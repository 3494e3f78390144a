"""Exact verification: how to put the question to a MIP solver, what encoding costs, what the store takes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import surebound as sb
from benchmarks.common import Benchmark, Measure, Race, seconds
from surebound import data as datasets
from surebound.graph import program_of
from surebound.numerics import SOLVER_FEASIBILITY
from surebound.region import LinfBall
from surebound.search.mip import Encoding, NetworkEncoder, tightest_bounds
from surebound.search.record import Record
from surebound.solvers import Limits, SolverStatus
from surebound.solvers.highs import solve
from surebound.verdict import Status, Verdict
from surebound.verify.identity import Identity
from surebound.verify.store import Store

LIMITS = Limits(SOLVER_FEASIBILITY, seconds=120.0, prove_below=0.0, falsify_above=1e-3)
EPS = Fraction(1, 12)
ROWS = 200


def benchmarks() -> Iterator[Benchmark]:
    """A fully connected network trained without robustness: several classes are open."""
    net, images, labels = trained()
    region = LinfBall(images, EPS, (0, 1))
    margins = sb.worst_margins(net, region, labels, method="crown")
    cases = [
        Case(encoding, int(label), [k for k in range(10) if row[k] > 0])
        for encoding, label, row in zip(encoded(net, images), labels, margins, strict=True)
    ]
    cases = [case for case in cases if len(case.classes) > 1]
    count = sum(len(c.classes) for c in cases)
    yield Measure(
        f"MIP of {len(cases)} examples with {count} open classes, nominal 64-24-24-10",
        "s",
        lambda: seconds(partial(per_class, cases)),
    )
    small, x = sb.models.small().eval().requires_grad_(False), torch.rand(1, 1, 28, 28)
    encoder = NetworkEncoder(program_of(small, x))
    box = LinfBall(x, "1/10", (0, 1)).interval()
    yield Race(
        "small, one example",
        {
            "interval bounds": partial(tightest_bounds, encoder.program, box, crown=False),
            "CROWN bounds": partial(tightest_bounds, encoder.program, box, crown=True),
            "encoding": partial(encoder.encode, tightest_bounds(encoder.program, box, crown=False)),
        },
    )
    yield Measure("results store: records one by one", "ms", lambda: 1e3 * seconds(store) / ROWS)


@dataclass(frozen=True, eq=False)
class Case:
    """One example that CROWN leaves open."""

    encoding: Encoding
    label: int
    classes: list[int]

    @property
    def rows(self) -> NDArray[np.float64]:
        """z_k - z_label for every open class k."""
        difference: NDArray[np.float64] = np.eye(10)[self.classes] - np.eye(10)[self.label]
        return difference


def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """A network for the digits after a few seconds of plain training, and test images that it gets right."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 10))
    data = datasets.load("digits")
    x, y = data.train.batch(torch.arange(len(data.train)))
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(net(x), y))
        optimiser.step()
    net.eval().requires_grad_(False)
    x, y = data.test.batch(torch.arange(40))
    right = (net(x).argmax(1) == y).nonzero().squeeze(1)[:20]
    return net, x[right], y[right]


def encoded(net: nn.Module, images: Tensor) -> Iterator[Encoding]:
    encoder = NetworkEncoder(program_of(net, images[:1]))
    for image in images:
        box = LinfBall(image.unsqueeze(0), EPS, (0, 1)).interval()
        yield encoder.encode(tightest_bounds(encoder.program, box, crown=True))


def per_class(cases: list[Case]) -> None:
    """Class by class until one falls, as the cascade does."""
    for case in cases:
        for row in case.rows:
            if solve(case.encoding.problem(row, 0.0), LIMITS).status is SolverStatus.ABOVE:
                break


def store() -> None:
    """Each record in a transaction of its own, on disk when it returns."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(f"{folder}/r.db", Identity("w", "s", "c")) as results,
    ):
        for index in range(ROWS):
            verdict = Verdict(Status.ROBUST, "interval", -1.0)
            results.add([Record(index, 0, 0, EPS, verdict)], "bench")
