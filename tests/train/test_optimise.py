"""Optimisers by name, and the l1 regularisation of weights against autograd."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from surebound.errors import ConfigError
from surebound.train.checkpoint import CheckpointStore
from surebound.train.examples import TensorExamples
from surebound.train.initialise import affine_layers
from surebound.train.loop import Loop
from surebound.train.methods import Nominal
from surebound.train.optimise import OPTIMISERS, add_l1_gradient
from surebound.train.plan import Plan
from surebound.train.task import Surroundings, Task
from tests.train.nets import tiny_data, tiny_net

PLAN = Plan(steps=12, batch_size=16, learning_rate=0.01, weight_decay=0.1)


def test_l1_gradient_is_autograds() -> None:
    net = tiny_net(batch_norm=True)
    with torch.no_grad():
        next(net.parameters())[0, 0] = 0.0
    x, y = tiny_data()
    torch.nn.functional.cross_entropy(net(x), y).backward()
    weights = [layer.weight for layer in affine_layers(net)]
    add_l1_gradient(weights, 0.01)
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    (torch.nn.functional.cross_entropy(net(x), y) + 0.01 * sum(w.abs().sum() for w in weights)).backward()
    for mine, p in zip(got, net.parameters(), strict=True):
        torch.testing.assert_close(mine, p.grad)


def test_l1_shrinks_the_weights() -> None:
    sums = []
    for l1 in (0.0, 0.1):
        net = tiny_net()
        Loop(Task(net, TensorExamples(*tiny_data(50)), Nominal(), replace(PLAN, l1=l1))).run()
        sums.append(sum(layer.weight.abs().sum().item() for layer in affine_layers(net)))
    assert sums[1] < sums[0]


@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_every_optimiser_is_pytorchs_and_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    def run(store: CheckpointStore | None, until: int) -> list[torch.Tensor]:
        net, calls = tiny_net(), iter(range(1, 100))
        task = Task(net, TensorExamples(*tiny_data(50)), Nominal(), replace(PLAN, optimiser=name))
        loop = Loop(task, Surroundings(checkpoints=store, stop=lambda: next(calls) >= until))
        assert type(loop.optimiser).__name__.lower() == name
        loop.run()
        return [p.detach().clone() for p in net.parameters()]

    straight, store = run(None, 99), CheckpointStore(tmp_path)
    run(store, 5)
    assert all(torch.equal(a, b) for a, b in zip(straight, run(store, 99), strict=True))


def test_unknown_optimisers_and_negative_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="optimiser must be one of adam, adamw, radam, got 'sgd'"):
        Plan(steps=1, optimiser="sgd")
    with pytest.raises(ConfigError, match="l1 must be 0 or more"):
        Plan(steps=1, l1=-1.0)
