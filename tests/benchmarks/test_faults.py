"""Faults and load, the quick form: a killed verification and flipped bits.

Killed trainings are in tests/experiment/test_run.py, two processes on one store in tests/verify/test_store.py.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks import faults


@pytest.mark.timeout(600)
def test_a_killed_verification_and_flipped_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(faults.__file__).parents[1]))
    commands = faults.Commands(tmp_path)
    _, seconds = faults.prepare(commands, tmp_path)
    assert len(faults.verdicts(tmp_path / "verified")) == 60
    assert list(faults.killed_verifications(commands, tmp_path, [0.8], seconds)) == []
    assert list(faults.killed_writers(commands, tmp_path, random.Random(1), 2)) == []
    assert list(faults.damaged(tmp_path, random.Random(0), 25)) == []
