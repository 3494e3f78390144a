"""Every preset trains on generated files in its dataset's official format."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import nn

import surebound.data as data
from surebound.data import fake
from surebound.experiment.nets import architecture_of
from surebound.experiment.overrides import Overrides
from surebound.experiment.presets import preset, preset_names
from surebound.train.loop import Loop
from surebound.train.methods import IBP
from surebound.train.task import Task
from surebound.zoo import Architecture


def kind(name: str) -> tuple[str, str, bool, str, bool]:
    """What decides which code a preset runs: radii and durations do not."""
    config = preset(name)
    return (
        config.data.name,
        config.model.name,
        config.model.batch_norm,
        config.method.name,
        config.data.augment,
    )


REPRESENTATIVES = {kind(name): name for name in reversed(preset_names())}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("data")
    for write in (fake.write_mnist, fake.write_fashion_mnist, fake.write_cifar10, fake.write_svhn):
        write(where, 20, 10)
    fake.write_imagenet64(where, 10, 10)
    return where


@lru_cache(maxsize=2)  # a network is traced once for all its presets
def network(architecture: Architecture) -> nn.Module:
    with pytest.MonkeyPatch.context() as patch:  # the large net's orthogonal weights take longer than its steps
        patch.setattr(nn.init, "orthogonal_", lambda weight, **_: nn.init.normal_(weight, std=0.02))
        return architecture.build()


@lru_cache
def dataset(name: str, where: Path) -> data.Dataset:
    return data.load(name, where)


@pytest.mark.parametrize("name", sorted(REPRESENTATIVES.values(), key=lambda n: (kind(n)[1:3], n)))
def test_first_steps(name: str, data_dir: Path) -> None:
    config = preset(name)
    source = dataset(config.data.name, data_dir)
    model = network(architecture_of(config.model, source))
    before = [p.detach().clone() for p in model.parameters()]
    method = config.method
    if isinstance(method, IBP) and config.model.name == "wrn-10-10":
        method = replace(method, elide=False)  # 1000 classes merged with the average pooling: half a minute a step
    big = config.model.name in ("large", "wrn-10-10")
    steps = 3 if not big else 2 if config.plan.ramp else 1  # with a ramp, the last step is on its way
    plan = replace(config.plan.stretched(steps), batch_size=2)
    if config.plan.ramp:
        plan = replace(plan, warmup=steps - 2, ramp=2)
    assert Loop(Task(model, source.train, method, plan, augment=source.augment)).run().finished
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_every_preset_describes_a_network_and_can_be_shortened(data_dir: Path) -> None:
    for name in preset_names():
        config = Overrides(steps=3, batch_size=2).apply(preset(name))
        architecture = architecture_of(config.model, dataset(config.data.name, data_dir))
        assert config.plan.steps == 3
        assert architecture.name == config.model.name
        assert (architecture.mean is None) == (config.data.name in ("digits", "mnist", "fashion_mnist"))
