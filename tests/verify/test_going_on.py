"""Failures, kills and other processes cost one example at most; a store takes only what belongs to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from surebound.errors import StoreError
from surebound.region import LinfBall
from surebound.search.stages import (
    Clean,
    IntervalBounds,
    PgdAttack,
)
from surebound.verdict import Status, Verdict
from surebound.verify import Cascade, Record, Store, verify
from surebound.verify.run import Progress, identity_of
from tests.verify.nets import Certain, Misbehave, steep

ZERO = torch.tensor([0])


def poisoned() -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.full((6, 2), 0.5)
    images[:, 1] = torch.tensor([0.1, 0.45, 0.2, 0.4, 0.44, 0.3])
    images[3, 0] = 0.0
    return images, torch.tensor([0, 0, 0, 1, 0, 0])


@pytest.mark.parametrize(("how", "jobs"), [("raise", None), ("kill", 1)])
def test_a_failure_costs_one_example_and_is_tried_twice(how: str, jobs: int | None, tmp_path: Path) -> None:
    """And a pool gives the same answers as this process, to the last bit of the witnesses."""
    images, labels = poisoned()
    log = tmp_path / "log"
    seen: list[Record] = []
    stages = Cascade("t", (Misbehave(how, str(log)), PgdAttack(10, 1)))
    results = verify(steep(), LinfBall(images, "1/20", clip=(0, 1)), labels, stages, jobs=jobs, out=tmp_path)
    expected = verify(steep(), LinfBall(images, "1/20", clip=(0, 1)), labels, Cascade("t", stages.stages[1:]))
    assert {record.verdict.status for record in expected} == {Status.UNKNOWN, Status.FALSIFIED}
    for record, other in zip(results, expected, strict=True):
        if record.index == 3:
            assert (record.verdict.status, record.verdict.stage) == (Status.ERROR, "misbehave")
            assert {"raise": "RuntimeError: poison", "kill": "SIGKILL"}[how] in record.verdict.detail
            continue
        assert (record.verdict.status, record.prediction) == (other.verdict.status, other.prediction)
        if other.verdict.witness is not None:
            assert torch.equal(record.verdict.witness, other.verdict.witness)
    assert log.read_text() == "xx"
    # A second run tries errors again.
    if how == "raise":
        verify(
            steep(),
            LinfBall(images, "1/20", clip=(0, 1)),
            labels,
            stages,
            out=tmp_path,
            progress=lambda now: seen.extend(now.records),
        )
        assert [record.index for record in seen] == [3]


def test_a_failed_stage_leaves_the_rest_to_later_ones(tmp_path: Path) -> None:
    images, labels = poisoned()
    stages = Cascade("t", (Misbehave("raise", str(tmp_path / "log")), Certain()))
    results = verify(steep(), LinfBall(images, "1/20", clip=(0, 1)), labels, stages)
    assert {record.verdict.status for record in results} == {Status.ROBUST}


# -- resuming --------------------------------------------------------------------------------------------------
_SCRIPT = """
import sys, torch
from tests.verify.nets import Slow, steep
from surebound.region import LinfBall
from surebound.verify import Cascade, verify
from surebound.search.stages import Clean
if __name__ == "__main__":
    images = torch.rand(12, 2, generator=torch.Generator().manual_seed(0))
    labels = steep()(images).argmax(1)
    region = LinfBall(images, "1/20", clip=(0, 1))
    verify(steep(), region, labels, Cascade("t", (Clean(), Slow(0.2))), out=sys.argv[1])
"""


def test_kill_dash_nine_and_go_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    root = str(Path(__file__).parents[2])
    command = [sys.executable, str(script), str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": root}
    process = subprocess.Popen(command, env=environment)
    path = tmp_path / "run" / "results.db"
    deadline = time.monotonic() + 240
    count = 0
    while count < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
        # The other process may be between making the file and filling it.
        with contextlib.suppress(StoreError), Store.read(path) as store:
            count = len(list(store.records()))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    with Store.read(path) as store:
        before = {record.index: record.verdict.seconds for record in store.records()}
    assert 3 <= len(before) < 12
    subprocess.run(command, env=environment, check=True, timeout=240)
    with Store.read(path) as store:
        after = {record.index: record.verdict.seconds for record in store.records()}
    assert sorted(after) == list(range(12))
    assert {index: after[index] for index in before} == before  # nothing was done twice


def test_other_weights_are_refused(tmp_path: Path) -> None:
    images, labels = torch.tensor([[0.9, 0.1]]), ZERO
    verify(steep(), LinfBall(images, "1/20", clip=(0, 1)), labels, "fast", out=tmp_path)
    with pytest.raises(StoreError, match="results of other weights"):
        verify(steep(2.0), LinfBall(images, "1/20", clip=(0, 1)), labels, "fast", out=tmp_path)
    assert len(verify(steep(2.0), LinfBall(images, "1/20", clip=(0, 1)), labels, "fast", out=tmp_path, mix=True)) == 1
    verify(steep(), LinfBall(images, "1/20", clip=(0, 1)), labels, "fast", out=tmp_path / "b")
    with pytest.raises(StoreError, match="another specification"):
        verify(steep(), LinfBall(images, "1/20"), labels, "fast", out=tmp_path / "b")


def test_other_data_are_refused(tmp_path: Path) -> None:
    verify(steep(), LinfBall(torch.tensor([[0.9, 0.1]]), "1/20", clip=(0, 1)), ZERO, "fast", out=tmp_path)
    with pytest.raises(StoreError, match="another example 0"):
        verify(steep(), LinfBall(torch.tensor([[0.8, 0.1]]), "1/20", clip=(0, 1)), ZERO, "fast", out=tmp_path)


def test_a_run_can_be_extended_and_deepened(tmp_path: Path) -> None:
    images = torch.tensor([[0.9, 0.1], [0.5, 0.45], [0.2, 0.8]])
    labels = torch.tensor([0, 0, 1])
    asked: list[int] = []

    def watch(now: Progress) -> None:
        asked.extend(record.index for record in now.records)

    first = verify(
        steep(),
        LinfBall(images, "1/20", clip=(0, 1)),
        labels,
        Cascade("a", (Clean(),)),
        indices=[0, 1],
        out=tmp_path,
        progress=watch,
    )
    assert [r.verdict.status for r in first] == [Status.UNKNOWN, Status.UNKNOWN]
    again = verify(
        steep(),
        LinfBall(images, "1/20", clip=(0, 1)),
        labels,
        Cascade("a", (Clean(),)),
        out=tmp_path,
        progress=watch,
    )
    assert asked == [0, 1, 2]  # only the new one
    assert len(again) == 3
    asked.clear()
    deep = verify(
        steep(),
        LinfBall(images, "1/20", clip=(0, 1)),
        labels,
        Cascade("b", (Clean(), IntervalBounds(), PgdAttack(20, 2))),
        out=tmp_path,
        progress=watch,
    )
    assert sorted(asked) == [0, 1, 2]  # unknowns of a weaker cascade are open questions
    assert [r.verdict.status for r in deep] == [Status.ROBUST, Status.FALSIFIED, Status.ROBUST]


def test_what_another_process_settled_is_not_done_again(tmp_path: Path) -> None:
    images = torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
    labels = steep()(images).argmax(1)

    def interfere(now: Progress) -> None:
        if now.done == 1:
            with Store.open(tmp_path / "results.db", identity) as other:
                verdict = Verdict(Status.ROBUST, "elsewhere", -1.0)
                other.add([Record(3, int(labels[3]), int(labels[3]), Fraction(1, 100), verdict)], "other")

    identity = identity_of(steep(), images, (0.0, 1.0))
    stages = Cascade("t", (Certain(),))
    results = verify(steep(), LinfBall(images, "1/100", clip=(0, 1)), labels, stages, out=tmp_path, progress=interfere)
    assert [record.verdict.stage for record in results] == ["certain"] * 3 + ["elsewhere"]


# -- questions that cannot be meant ----------------------------------------------------------------------------
