"""Wong et al.: the loss is that of the dual margins, exact or estimated; settings and presets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import surebound as sb
from surebound.errors import ConfigError
from surebound.experiment.presets import preset, preset_names
from surebound.train.methods import METHODS, Nominal, Wong
from tests.train.nets import tiny_batch, tiny_net


def test_the_exact_loss_is_that_of_the_dual_bound() -> None:
    net = tiny_net().eval()
    batch = tiny_batch(net, epsilon=0.1, kappa=0.25)
    region = sb.LinfBall(batch.images, eps="1/10", clip=(0, 1))
    margins = sb.worst_margins(net, region, batch.labels, method=METHOD, soundness="none")
    clean = F.cross_entropy(net(batch.images), batch.labels)
    found = Wong(projections=0).loss(batch)
    # worst_margins is intersected with elided intervals: never above
    expected = 0.25 * clean + 0.75 * F.cross_entropy(margins, batch.labels)
    assert found.value.item() >= expected.item() - 1e-6
    assert found.value.item() == pytest.approx(expected.item(), rel=0.02)
    assert set(found.scalars) == {"clean_error", "verified_error"}


METHOD = "wong"


def test_the_estimated_loss_is_near_the_exact_one_and_says_so() -> None:
    batch = tiny_batch(tiny_net().eval(), epsilon=0.1, kappa=0.0)
    exact = Wong(projections=0).loss(batch).value.item()
    found = Wong(projections=501).loss(batch)
    assert found.value.item() == pytest.approx(exact, rel=0.02)
    assert set(found.scalars) == {"estimated_error"}  # not a verified one


def test_the_same_draws_give_the_same_loss() -> None:
    batch = tiny_batch(tiny_net().eval(), epsilon=0.1, kappa=0.0)
    again = replace(batch, generator=torch.Generator().manual_seed(3))
    assert torch.equal(Wong().loss(batch).value, Wong().loss(again).value)


@pytest.mark.parametrize("projections", [0, 9])
def test_at_radius_0_it_is_the_nominal_loss(projections: int) -> None:
    net = tiny_net().eval()
    nominal = Nominal().loss(tiny_batch(net)).value.item()
    found = Wong(projections=projections).loss(tiny_batch(net, epsilon=0.0, kappa=0.0))
    assert found.value.item() == pytest.approx(nominal, rel=1e-5)


@pytest.mark.parametrize("projections", [0, 9])
def test_batch_norm_learns_its_statistics_and_bounds_use_the_running_ones(projections: int) -> None:
    net = tiny_net(batch_norm=True)
    before = net[1].running_mean.clone()
    loss = Wong(projections=projections).loss(tiny_batch(net, epsilon=0.05, kappa=0.0))
    loss.value.backward()
    assert not torch.equal(before, net[1].running_mean)
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"projections": 2}, "a median needs at least 3"), ({"memory": 0}, "give a positive number of bytes")],
)
def test_bad_settings(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Wong(**settings)


def test_presets_have_the_authors_schedule() -> None:
    assert METHODS["wong"] is Wong
    plan, epoch = preset("mnist-small-wong-0.1").plan, 60_000 / 50
    assert (plan.batch_size, plan.steps / epoch, plan.ramp / epoch, plan.warmup) == (50, 60, 20, 0)
    assert [plan.rate.at(int(e * epoch)) for e in (0, 10, 25)] == [1e-3, 5e-4, 2.5e-4]
    assert (plan.epsilon.at(0), plan.epsilon.at(plan.steps)) == (0.01, 0.1)
    assert str(preset("cifar10-medium-wong-8-255").plan.eps_train) == "8/255"
    assert preset("svhn-small-wong-0.01").plan.epsilon.at(0) == 0.001
    assert not any("large-wong" in name for name in preset_names())
