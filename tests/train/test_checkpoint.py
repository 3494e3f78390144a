"""Checkpoints: whole or not there, on full disks and damaged ones."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from surebound.errors import RunError
from surebound.train import checkpoint as module
from surebound.train.checkpoint import (
    Checkpoint,
    CheckpointStore,
    read_tensors,
    replace_file,
    restore_rng,
    rng_state,
)


def make(step: int, size: int = 4) -> Checkpoint:
    shared = torch.full((size,), float(step))
    return Checkpoint(step, {"a": shared, "tied": shared}, {"0.exp_avg": torch.ones(size)}, {"best": None})


def test_round_trip_and_pruning(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.latest() is None
    for step in (10, 20, 30):
        store.save(make(step))
    store.save_best(make(20))
    store.save_best(make(30))
    assert store.steps() == [20, 30]
    found = store.latest()
    assert found is not None
    assert found.step == 30
    assert found.weights["tied"].tolist() == [30.0] * 4
    assert found.optimiser["0.exp_avg"].tolist() == [1.0] * 4
    assert store.read(tmp_path / "checkpoints" / "best").step == 30
    assert sorted(p.name for p in store.directory.iterdir()) == ["best", "step-000000020", "step-000000030"]


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(make(1))
    newest = store.save(make(2))
    (newest / "weights.safetensors").write_bytes(b"\x08")
    found = store.latest()
    assert found is not None
    assert found.step == 1
    (store.path(1) / "state.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match=r"no checkpoint can be read: the checkpoint .*step-000000002 is damaged"):
        store.latest()


@pytest.mark.parametrize("victim", ["write_tensors", "write_text", "sync_directory"])
def test_a_crash_at_any_moment_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str) -> None:
    store = CheckpointStore(tmp_path)
    store.save(make(1))

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, victim, fail)
    with pytest.raises(RunError, match=r"No space left on device.*Nothing half-written was kept; free some space"):
        store.save(make(2))
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000001"]


def test_an_unfinished_directory_is_no_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(make(1))
    (tmp_path / ".step-000000002.partial").mkdir()  # what kill -9 leaves behind
    assert store.steps() == [1]
    store.save(make(2))
    assert store.steps() == [1, 2]


FULL_DISK = """
import sys
from pathlib import Path
import torch
from surebound.errors import RunError
from surebound.train.checkpoint import Checkpoint, CheckpointStore

store = CheckpointStore(Path(sys.argv[1]))
def make(step, size):
    return Checkpoint(step, {"a": torch.zeros(size)}, {"0.exp_avg": torch.zeros(size)}, {})
store.save(make(1, 1000))
try:
    store.save(make(2, 4_000_000))
except RunError as error:
    assert "free some space" in str(error), error
else:
    raise SystemExit("a full disk went unnoticed")
assert store.latest().step == 1
print(sorted(p.name for p in Path(sys.argv[1]).iterdir()))
"""


def test_full_disk(tmp_path: Path) -> None:
    """A tmpfs of 1 MB in a namespace of its own, where the system allows one; else a limit on file sizes."""
    script = tmp_path / "fill.py"
    script.write_text(FULL_DISK, encoding="utf-8")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=1m none {disk} && exec {sys.executable} {script} {disk}"
    limit = f"ulimit -f 1000 && exec {sys.executable} {script} {disk}"
    allowed = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
    command = ["unshare", "-rm", "sh", "-c", mount] if allowed else ["bash", "-c", limit]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ), timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['step-000000001']"


def test_replacing_a_file_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "final.safetensors"
    replace_file(path, {"a": torch.ones(2)})
    before = path.read_bytes()
    with pytest.raises(RunError, match="check that the directory is writable"):
        replace_file(tmp_path / "missing" / "final.safetensors", {"a": torch.zeros(2)})

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_tensors", fail)
    with pytest.raises(RunError, match="free some space"):
        replace_file(path, {"a": torch.zeros(2)})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["final.safetensors"]


def test_rng_goes_through_json() -> None:
    cpu = torch.device("cpu")
    state = json.loads(json.dumps(rng_state(cpu)))
    first = torch.rand(5)
    restore_rng(state, cpu)
    assert torch.equal(first, torch.rand(5))


def test_any_flipped_bit_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    weights = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
    path = store.save(Checkpoint(7, weights, {"m": torch.ones(2)}, {"best": 0.5, "rng": "00ff"}))

    def read() -> object:
        found = store.read(path)
        values = [(k, v.tolist()) for part in (found.weights, found.optimiser) for k, v in sorted(part.items())]
        return found.step, found.state["best"], found.state["rng"], values

    expected, draw = read(), random.Random(0)
    for name in ("weights.safetensors", "optimiser.safetensors", "state.json"):
        content = (path / name).read_bytes()
        for _ in range(200):
            place, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
            (path / name).write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            try:
                assert read() == expected, f"byte {place} of {name} flipped by {bit}"
            except RunError:
                continue
        (path / name).write_bytes(content)
    assert read() == expected


def test_files_without_a_seal_are_those_of_earlier_runs(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "w.safetensors")
    assert read_tensors(tmp_path / "w.safetensors")["w"].tolist() == [1.0, 1.0]
    path = CheckpointStore(tmp_path).save(Checkpoint(7, {"w": torch.ones(2)}, {}, {"best": 0.5}))
    (path / "state.json").write_text(json.dumps({"best": 0.5, "step": 7}))
    assert CheckpointStore(tmp_path).read(path).step == 7
