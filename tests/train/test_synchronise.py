"""BatchNorm over two processes: with shared statistics they train what one process does; without, something else."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from surebound.train.distributed import ALONE
from surebound.train.synchronise import GlobalStatistics, synchronised
from tests.train.ports import free_port

WORKER = """
import sys

from pathlib import Path
import torch
from safetensors.torch import save_file
from torch import nn
from surebound.train.average import Averaging
from surebound.train.distributed import process_group
from surebound.train.examples import TensorExamples
from surebound.train.loop import Loop
from surebound.train.task import Surroundings, Task
from surebound.train.methods import CROWNIBP, IBP, MTLIBP, Nominal
from surebound.train.methods.inner import InnerAttack
from surebound.train.plan import Plan

out = Path(sys.argv[1])
torch.set_num_threads(1)
still = InnerAttack(random_start=False)  # starts are drawn per process
METHODS = {"ibp": IBP(), "nominal": Nominal(), "crown-ibp": CROWNIBP(), "mtl-ibp": MTLIBP(attack=still)}

with process_group() as group:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(40, 1, 4, 4, generator=generator, dtype=torch.float64)
    y = (x.flatten(1)[:, :3]).argmax(1)
    saved = {}
    for name, method in METHODS.items():
        for shared in (True, False):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Conv2d(1, 4, 2, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                                nn.Linear(36, 8, bias=False), nn.BatchNorm1d(8, affine=False), nn.ReLU(),
                                nn.Linear(8, 3)).double()
            plan = Plan(steps=6, batch_size=8, eps_train="1/20", warmup=2, ramp=2, seed=5, kappa_final=0.25,
                        averaging=Averaging(start=4, batches=2), sync_batch_norm=shared)
            Loop(Task(net, TensorExamples(x, y), method, plan), Surroundings(group=group)).run()
            saved |= {f"{name}-{shared}-{key}": value for key, value in net.state_dict().items()}
    save_file(saved, out / f"{group.size}-{group.rank}.safetensors")
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    """The same trainings by one process, and by the first and the second of two."""
    out = tmp_path_factory.mktemp("synchronised")
    script = out / "worker.py"
    script.write_text(WORKER, encoding="utf-8")
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(out)],
            env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    with pytest.MonkeyPatch.context() as patch:  # one process: this one
        patch.setattr(sys, "argv", [str(script), str(out)])
        runpy.run_path(str(script))
    for process in processes:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
    return [load_file(out / f"{name}.safetensors") for name in ("1-0", "2-0", "2-1")]


@pytest.mark.parametrize("method", ["ibp", "nominal", "crown-ibp", "mtl-ibp"])
def test_two_processes_train_what_one_does(results: list[dict[str, torch.Tensor]], method: str) -> None:
    """Weights, running statistics and those recomputed for averaged weights."""
    one, left, right = results
    names = [name for name in one if name.startswith(f"{method}-True-")]
    assert len(names) == 12
    for name in names:
        torch.testing.assert_close(left[name], one[name], rtol=1e-9, atol=1e-12)  # sums in another order
        assert torch.equal(left[name], right[name])


@pytest.mark.parametrize("method", ["ibp", "nominal", "crown-ibp", "mtl-ibp"])
def test_without_it_each_process_has_statistics_of_its_own(results: list[dict[str, torch.Tensor]], method: str) -> None:
    one, left, right = results
    name = f"{method}-False-1.running_mean"
    assert not torch.equal(left[name], right[name])
    assert float((left[name] - one[name]).abs().max()) > 1e-6


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(3), nn.BatchNorm1d(3, affine=False), nn.BatchNorm2d(3, momentum=None)]
)
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_computes_and_learns_what_it_does_without(layer: nn.Module, training: bool) -> None:
    """Alone, the statistics of the whole batch are the layer's own: outputs, gradients and running statistics."""
    found, parts = [], []

    def shared(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        parts.append(part)
        return GlobalStatistics(ALONE)(part)

    for statistics in (None, shared):
        layer.reset_running_stats()
        layer.double().train(training)
        x = torch.rand(5, 3, *[4] * (2 if isinstance(layer, nn.BatchNorm2d) else 1), dtype=torch.float64,
                       generator=torch.Generator().manual_seed(3)).requires_grad_()  # fmt: skip
        with synchronised(statistics):
            y = layer(x)
            (y * torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape).sin()).sum().backward()
        found.append([y.detach(), x.grad, *(value.clone() for value in layer.buffers())])
    assert len(parts) == training
    for before, after in zip(*found, strict=True):
        torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-12)
