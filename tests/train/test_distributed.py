"""Two processes compute what one does: gradients, augmentation, evaluation, and stopping together."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from surebound.experiment.rundir import RunDirectory
from tests.train.ports import free_port

WORKER = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from torch import nn
from surebound.data import Augment
from surebound.train.distributed import process_group
from surebound.train.evaluate import Evaluation
from surebound.train.examples import TensorExamples
from surebound.train.loop import Loop
from surebound.train.task import Surroundings, Task
from surebound.train.methods import IBP
from surebound.train.observe import Observer
from surebound.train.plan import Plan

out = Path(sys.argv[1])
torch.set_num_threads(1)

class Diary(Observer):
    errors = None
    def evaluated(self, step, errors):
        Diary.errors = errors

with process_group() as group:
    torch.manual_seed(group.rank)  # weights differ until the leader's are given to all
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(40, 1, 4, 4, generator=generator, dtype=torch.float64)
    y = (x.flatten(1)[:, :3]).argmax(1)
    plan = Plan(steps=6, batch_size=8, eps_train="1/20", warmup=2, ramp=2, seed=5, clip_norm=1.0)
    task = Task(net, TensorExamples(x, y), IBP(), plan, TensorExamples(x, y), Augment(pad=1, flip=True),
                evaluation=Evaluation(radii=("1/20",), every=6, pgd_steps=2, pgd_images=20, batch_size=6))
    Loop(task, Surroundings(group=group, observer=Diary())).run()
    weights = dict(net.state_dict())
    weights["clean"] = torch.tensor(Diary.errors.clean, dtype=torch.float64)
    weights["verified"] = torch.tensor(list(Diary.errors.verified.values()), dtype=torch.float64)
    save_file(weights, out / f"{group.size}-{group.rank}.safetensors")

    # one process is asked to stop, in its third step: all stop after the same step
    calls = iter(range(100))
    stop = (lambda: next(calls) >= 2) if group.rank == group.size - 1 else (lambda: False)
    outcome = Loop(task, Surroundings(group=group, stop=stop)).run()
    (out / f"stopped-{group.size}-{group.rank}").write_text(str(outcome.step))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training by one process and by two."""
    out = tmp_path_factory.mktemp("workers")
    script = out / "worker.py"
    script.write_text(WORKER, encoding="utf-8")
    port = str(free_port())
    environments = [
        {
            "RANK": str(r),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(r),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for r in range(2)
    ]
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(out)],
            env={**os.environ, **environment, "PYTHONWARNINGS": "error::UserWarning"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments
    ]
    with pytest.MonkeyPatch.context() as patch:  # one process: this one
        patch.setattr(sys, "argv", [str(script), str(out)])
        runpy.run_path(str(script))
    for process in processes:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
    return out


def test_two_processes_train_what_one_does(results: Path) -> None:
    one, left, right = (load_file(results / f"{n}.safetensors") for n in ("1-0", "2-0", "2-1"))
    for name in one:
        torch.testing.assert_close(left[name], one[name], rtol=1e-9, atol=1e-12)  # sums in another order
        assert torch.equal(left[name], right[name])


def test_all_processes_stop_after_the_same_step(results: Path) -> None:
    assert [(results / f"stopped-{n}").read_text() for n in ("1-0", "2-0", "2-1")] == ["3", "3", "3"]


def test_when_a_process_is_killed_the_others_stop_and_the_run_goes_on_with_fewer(tmp_path: Path) -> None:
    """Through the command line, as torchrun starts it: kill one process in mid-run, then resume with one alone."""
    run, port = tmp_path / "run", str(free_port())
    words = ("train", "digits-nominal", "--steps", "100000", "--checkpoint-seconds", "0", "--threads", "1", "--out")
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "surebound", *words, str(run)],
            env={**os.environ, "RANK": str(r), "WORLD_SIZE": "2", "LOCAL_RANK": str(r), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for r in range(2)
    ]  # fmt: skip
    try:
        deadline = time.monotonic() + 90
        while not list(run.glob("checkpoints/step-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        processes[1].kill()
        _, said = processes[0].communicate(timeout=60)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert processes[0].returncode == 2, said
    assert "another process of this run is gone" in said
    assert "Traceback" not in said
    saved = RunDirectory.open(run).checkpoints().latest()
    assert saved is not None
    text = (run / "config.toml").read_text().replace("steps = 100000", f"steps = {saved.step + 3}", 1)
    (run / "config.toml").write_text(text)
    alone = subprocess.run([sys.executable, "-m", "surebound", "resume", str(run)], capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    assert "goes on with 1: it will not end with the same bits" in alone.stderr + alone.stdout
    assert RunDirectory.open(run).final.is_file()
