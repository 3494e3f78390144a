"""Averages of weights: against sums by hand, with statistics recomputed, resumed to the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from surebound.errors import ConfigError
from surebound.train.average import Averaging, WeightAverage, recompute_statistics
from surebound.train.checkpoint import CheckpointStore
from surebound.train.evaluate import Errors, Evaluation
from surebound.train.examples import TensorExamples
from surebound.train.loop import Loop
from surebound.train.methods import Nominal
from surebound.train.observe import Observer
from surebound.train.plan import Plan
from surebound.train.task import Surroundings, Task
from tests.train.nets import tiny_data, tiny_net

PLAN = Plan(steps=12, batch_size=16, learning_rate=0.05, averaging=Averaging(start=4, every=2, batches=3))


def task(net: nn.Module, plan: Plan = PLAN, **options: object) -> Task:
    return Task(net, TensorExamples(*tiny_data(50)), Nominal(), plan, **options)  # type: ignore[arg-type]


def trajectory(plan: Plan) -> list[list[Tensor]]:
    """The weights after every step of the run without an average."""
    net = tiny_net(batch_norm=True)
    loop = Loop(task(net, replace(plan, averaging=None)))
    loop.prepare()
    weights = [[p.detach().clone() for p in net.parameters()]]
    while loop.step < plan.steps:
        loop.advance()
        weights.append([p.detach().clone() for p in net.parameters()])
    return weights


@pytest.mark.parametrize("decay", [None, 0.6])
def test_a_finished_run_leaves_the_average(decay: float | None) -> None:
    plan = replace(PLAN, averaging=replace(PLAN.averaging, decay=decay))
    samples = [trajectory(plan)[step] for step in (6, 8, 10, 12)]
    shares = [0.25] * 4
    if decay is not None:  # plain for two samples, since 1 - decay is less than 1/2 and more than 1/3
        shares = [0.5 * 0.6 * 0.6, 0.5 * 0.6 * 0.6, 0.4 * 0.6, 0.4]
    net = tiny_net(batch_norm=True)
    assert Loop(task(net, plan)).run().finished
    for i, p in enumerate(net.parameters()):
        expected = sum(share * sample[i] for share, sample in zip(shares, samples, strict=True))
        torch.testing.assert_close(p.detach(), expected)


def test_statistics_are_those_of_the_batches_for_the_averaged_weights() -> None:
    net = tiny_net(batch_norm=True)
    loop = Loop(task(net))
    loop.run()
    inputs = list(loop._inputs(3))
    first, norm = net[0], net[1]
    values = [first(x) for x in inputs]
    torch.testing.assert_close(norm.running_mean, sum(v.mean(0) for v in values) / 3)
    torch.testing.assert_close(norm.running_var, sum(v.var(0) for v in values) / 3)
    assert norm.momentum == 0.1


def test_frozen_statistics_and_networks_without_any_stay_as_they_are() -> None:
    net = tiny_net(batch_norm=True)
    net[1].eval()
    before = net[1].running_mean.clone()
    recompute_statistics(net, [torch.rand(8, 4)])
    assert torch.equal(net[1].running_mean, before)
    assert not net[1].training
    assert net[4].training

    def never() -> object:
        raise AssertionError
        yield

    recompute_statistics(tiny_net(), never())  # type: ignore[arg-type]


def test_the_average_is_measured_and_training_goes_on_as_if_it_were_not(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    class Listener(Observer):
        def evaluated(self, step: int, errors: Errors) -> None:
            seen.append((step, errors.clean))

    def run(every: int, store: CheckpointStore | None) -> list[Tensor]:
        net = tiny_net(batch_norm=True)
        held_out = TensorExamples(*tiny_data(40, seed=5))
        watched = task(net, held_out=held_out, evaluation=Evaluation(every=every))
        Loop(watched, Surroundings(observer=Listener(), checkpoints=store)).run()
        return [value.clone() for value in net.state_dict().values()]

    store = CheckpointStore(tmp_path)
    plain, watched = run(0, None), run(3, store)
    assert [step for step, _ in seen] == [3, 6, 9, 12]
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    net = tiny_net(batch_norm=True)
    loop = Loop(task(net), Surroundings(checkpoints=store))
    loop.run()  # of a finished run: only its average is taken again
    x, y = tiny_data(40, seed=5)
    assert (net(x).argmax(1) != y).double().mean().item() == pytest.approx(seen[-1][1])


def test_resume_comes_to_the_same_average(tmp_path: Path) -> None:
    def run(store: CheckpointStore | None, until: int) -> dict[str, Tensor]:
        net, calls = tiny_net(batch_norm=True), iter(range(1, 100))
        Loop(task(net), Surroundings(checkpoints=store, stop=lambda: next(calls) >= until)).run()
        return {name: value.clone() for name, value in net.state_dict().items()}

    straight, store = run(None, 99), CheckpointStore(tmp_path)
    for part in (5, 2, 99):
        pieces = run(store, part)
    assert all(torch.equal(straight[name], pieces[name]) for name in straight)


def test_average_of_no_sample_changes_nothing() -> None:
    plan = replace(PLAN, averaging=Averaging(start=11, every=5))
    last, net = trajectory(plan)[-1], tiny_net(batch_norm=True)
    Loop(task(net, plan)).run()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), last, strict=True))
    assert WeightAverage(Averaging(), list(net.parameters())).count == 0


def test_a_stretched_plan_averages_the_same_share() -> None:
    stretched = PLAN.stretched(120)
    assert stretched.averaging == replace(PLAN.averaging, start=40)
    assert replace(PLAN, averaging=None).stretched(120).averaging is None


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="averaging needs start >= 0"):
        Averaging(every=0)
    with pytest.raises(ConfigError, match="decay of an average must be between 0 and 1, got 1"):
        Averaging(decay=1.0)
    with pytest.raises(ConfigError, match="averaging starts at step 12, but the run has steps = 12"):
        replace(PLAN, averaging=Averaging(start=12))
