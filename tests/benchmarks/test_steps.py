"""The scripts that compare training steps: with nominal ones over a schedule, and with another library's."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from benchmarks import mean_step
from benchmarks.peers import training


def test_the_mean_step_of_a_short_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        mean_step.main(["digits-ibp", "--steps", "40", "--every", "2"])
    finally:
        torch.set_num_threads(threads)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert len(lines) == mean_step.PARTS
    assert lines[-1].startswith("step 40 of 40: epsilon 0.1, kappa")
    assert float(lines[-1].rpartition(" ")[2]) > 0.5


def test_the_margins_of_the_peer_are_all_but_the_true_class() -> None:
    spec = training._margins(torch.tensor([0, 2]), classes=3)
    assert spec.tolist() == [[[1, -1, 0], [1, 0, -1]], [[-1, 0, 1], [0, -1, 1]]]


def test_a_missing_peer_is_said_with_the_remedy(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", nowhere)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit, match="python -m benchmarks.peers setup"):
        training.peer(tmp_path)
