"""Every status of a solver ends in its verdict; nothing unclear proves anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import nn

from surebound.region import LinfBall
from surebound.search.stages import (
    LinearRelaxation,
    MixedInteger,
    Stage,
)
from surebound.search.verdicts import Setting, decide, example_of
from surebound.search.workspace import Workspace
from surebound.verdict import Status, Verdict
from surebound.verify import Cascade, verify
from tests.verify.nets import needle

CENTER = torch.full((1, 3), 0.5)


NEEDLE = needle()

FAKE = "tests.verify.fake_solver"
EXPECTED = {
    "OPTIMAL": Status.ROBUST,
    "BELOW": Status.ROBUST,
    "TIME_LIMIT": Status.ROBUST,  # its dual bound, -1/4, is a bound
    "absurd": Status.UNKNOWN,  # the example itself has a larger margin
    "INFEASIBLE": Status.UNKNOWN,
    "UNBOUNDED": Status.UNKNOWN,
    "NUMERICAL": Status.UNKNOWN,
    "MEMORY_LIMIT": Status.UNKNOWN,
    "UNKNOWN": Status.UNKNOWN,
    "CRASHED": Status.UNKNOWN,
    "KILLED": Status.UNKNOWN,
    "liar": Status.UNKNOWN,
    "nan": Status.UNKNOWN,
    "raise": Status.UNKNOWN,
    "exit": Status.UNKNOWN,
    "crash": Status.UNKNOWN,
    "killed": Status.UNKNOWN,
    "hang": Status.TIMEOUT,
}


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    with Workspace(NEEDLE) as workspace:
        yield workspace


@pytest.fixture
def behave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    script = tmp_path / "behaviour"
    monkeypatch.setenv("SUREBOUND_FAKE_SOLVER", str(script))
    return script.write_text


def verdict_of(stage: Stage, workspace: Workspace) -> Verdict:
    records, undecided = decide([stage], [example_of(0, CENTER[0], 0, Fraction(2, 5), "")], Setting(), workspace)
    return [*records, *(example.left_open() for example in undecided)][0].verdict


def test_every_solver_status_ends_in_its_verdict(behave: Callable[[str], object], workspace: Workspace) -> None:
    workspace.close()
    for behaviour, expected in EXPECTED.items():
        behave(behaviour)
        verdict = verdict_of(MixedInteger(seconds=0.2 if behaviour == "hang" else 20.0, solver=FAKE), workspace)
        assert verdict.status is expected, behaviour
        assert not verdict.float_sound
        assert verdict.detail or verdict.status is Status.ROBUST


def test_the_relaxation_reads_statuses_the_same_way(behave: Callable[[str], object], workspace: Workspace) -> None:
    workspace.close()
    for behaviour in ("OPTIMAL", "INFEASIBLE", "liar", "nan", "absurd"):
        behave(behaviour)
        assert verdict_of(LinearRelaxation(solver=FAKE), workspace).status is EXPECTED[behaviour], behaviour


def test_networks_that_are_not_piecewise_linear_pass_the_solvers_by() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).requires_grad_(False)
    label = net(CENTER).argmax(1)
    verdict = (
        verify(net, LinfBall(CENTER, "2/5", clip=(0, 1)), label, Cascade("t", (MixedInteger(),))).records[0].verdict
    )
    assert verdict.status is Status.UNKNOWN
    assert "not piecewise linear" in verdict.detail


# -- stages and workers that fail ------------------------------------------------------------------------------
