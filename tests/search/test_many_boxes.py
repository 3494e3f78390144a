"""Searches over many boxes, each with cases of its own: every bound is its own case's, whatever way proved others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from surebound.search import rule
from surebound.search.branch_and_bound import Options
from surebound.search.complete import search
from surebound.search.question import Cases, Finding, Proof, Question
from surebound.search.rule import INPUTS, SIGNS, Budget
from surebound.search.workspace import Workspace
from tests.verify.oracle import exact_maximum, tiny_net

BOXES = 9


def question(room: list[float], seed: int) -> tuple[Question, Workspace]:
    """Cases of two rows over boxes of one input, the first of which stays so far below 0; points are never judged."""
    draw, net = torch.Generator().manual_seed(seed), tiny_net([1, 4, 2], seed, scale=2.0)
    lower = 2 * torch.rand(BOXES, 1, generator=draw) - 1
    upper = lower + torch.rand(BOXES, 1, generator=draw)
    box = torch.randperm(len(room), generator=draw) % BOXES
    c = torch.randn(len(room), 2, 2, generator=draw)
    worst = [
        exact_maximum(net, lower[g], upper[g], row[0].double().numpy()) for g, row in zip(box.tolist(), c, strict=True)
    ]
    d = torch.stack([-torch.tensor(worst) - torch.tensor(room), torch.full((len(room),), 100.0)], 1).double()
    every, unknown = torch.arange(len(room)), torch.full((len(room),), torch.inf, dtype=torch.float64)
    asked = Question(Cases(c, d, lower, upper, box), every, unknown, lambda point, number: None)
    return asked, Workspace(net)


def found_by(asked: Question, workspace: Workspace, splits: tuple[str, ...], seconds: float = 100.0) -> Finding:
    with workspace:
        return search(asked, workspace, Options(seconds=seconds), splits)


@pytest.mark.parametrize("splits", [(), (SIGNS, INPUTS), (INPUTS, SIGNS), (SIGNS,)])
def test_every_case_has_its_own_bound(splits: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways that are soon given up follow each other; what one has proved is left out of the next."""
    first = {INPUTS: Budget(2_000_000, 0), SIGNS: Budget(1)}
    monkeypatch.setattr(rule, "PATIENCE", (first, *rule.PATIENCE))
    room = [0.01] * 7 + [-0.01] + [0.5] * 6
    found = found_by(*question(room, 0), splits)
    assert found.margins is not None and found.proof is Proof.DEPLOYED
    upper, exact = found.margins.numpy(), -np.array(room)
    assert (upper >= exact - 1e-6).all()
    assert (upper[exact < 0] <= 0).all() and upper[7] > 0


def test_time_that_ends_leaves_bounds_that_hold() -> None:
    room = [0.001] * 10
    found = found_by(*question(room, 2), (), seconds=0.02)
    assert found.timed_out or found.margins is not None
    if found.margins is not None:
        assert bool((found.margins.numpy() >= -np.array(room) - 1e-6).all())
