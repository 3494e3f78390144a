"""Methods: their losses against independent computations, and what each ablation changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

from surebound.errors import ConfigError
from surebound.train.losses import LOSSES
from surebound.train.methods import IBP, METHODS, Adversarial, Batch, Loss, Method, Nominal, register
from surebound.train.methods import base as base_module
from surebound.train.regularise import BoundRegulariser
from tests.train.nets import reference_margins, tiny_batch, tiny_net


@pytest.mark.parametrize("objective", list(LOSSES))
@pytest.mark.parametrize("elide", [True, False])
def test_ibp_loss_is_the_papers(objective: str, elide: bool) -> None:
    net = tiny_net()
    batch = tiny_batch(net, epsilon=0.07, kappa=0.3)
    margins = reference_margins(net, batch.images, batch.labels, 0.07, elide)
    fit = F.cross_entropy(net(batch.images), batch.labels)
    expected = 0.3 * fit + 0.7 * LOSSES[objective](margins, batch.labels)
    loss = IBP(objective=objective, elide=elide).loss(batch)
    assert loss.value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert set(loss.scalars) == {"clean_error", "verified_error"}


def test_gradients_are_the_references() -> None:
    net = tiny_net()
    batch = tiny_batch(net, epsilon=0.07, kappa=0.3)
    IBP().loss(batch).value.backward()
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    margins = reference_margins(net, batch.images, batch.labels, 0.07)
    (0.3 * F.cross_entropy(net(batch.images), batch.labels) + 0.7 * F.cross_entropy(margins, batch.labels)).backward()
    for mine, p in zip(got, net.parameters(), strict=True):
        torch.testing.assert_close(mine, p.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kappa", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_at_radius_0_both_losses_are_equal(kappa: float, batch_norm: bool) -> None:
    net = tiny_net(batch_norm)
    nominal = Nominal().loss(tiny_batch(net))
    loss = IBP().loss(tiny_batch(net, epsilon=0.0, kappa=kappa))
    assert loss.value.item() == pytest.approx(nominal.value.item(), rel=1e-5)


@pytest.mark.parametrize(("kappa", "clean", "bounds"), [(1.0, True, False), (0.5, True, True), (0.0, False, True)])
def test_the_pass_whose_weight_is_0_is_not_computed(
    monkeypatch: pytest.MonkeyPatch, kappa: float, clean: bool, bounds: bool
) -> None:
    seen = {}
    real = base_module.training_pass

    def spy(*args: object, **kwargs: object) -> object:
        seen.update(kwargs)
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(base_module, "training_pass", spy)
    IBP().loss(tiny_batch(tiny_net(), kappa=kappa))
    assert (seen["clean"], seen["bounds"]) == (clean, bounds)


def test_elision_never_makes_the_loss_larger() -> None:
    batch = tiny_batch(tiny_net(), epsilon=0.1, kappa=0.0)
    assert IBP().loss(batch).value.item() < IBP(elide=False).loss(batch).value.item()


def test_a_larger_radius_is_never_easier() -> None:
    net = tiny_net()
    losses = [IBP().loss(tiny_batch(net, epsilon=e, kappa=0.0)).value.item() for e in (0.0, 0.01, 0.1, 0.3)]
    assert losses == sorted(losses)


def test_regulariser_counts_only_inside_the_ramp() -> None:
    net = tiny_net()
    method = IBP(regulariser=BoundRegulariser(weight=0.5, tolerance=1.0))
    for epsilon, present in ((0.0, False), (0.05, True), (0.1, False)):
        loss = method.loss(tiny_batch(net, epsilon=epsilon))
        assert ("regulariser" in loss.scalars) is present
        plain = IBP().loss(tiny_batch(net, epsilon=epsilon)).value.item()
        extra = 0.25 * loss.scalars["regulariser"].item() if present else 0.0
        assert loss.value.item() == pytest.approx(plain + extra, rel=1e-5)


def test_batch_norm_statistics_move_in_training_only() -> None:
    net = tiny_net(batch_norm=True)
    norm = net[1]
    for kappa in (0.0, 0.5, 1.0):
        before = norm.running_mean.clone()
        net.train()
        IBP().loss(tiny_batch(net, kappa=kappa))
        moved = norm.running_mean.clone()
        assert not torch.equal(before, moved)
        net.eval()
        IBP().loss(tiny_batch(net, kappa=kappa))
        assert torch.equal(moved, norm.running_mean)
        net.train()


def test_attack_stays_in_the_ball_and_raises_the_loss() -> None:
    net = tiny_net(batch_norm=True)
    batch = tiny_batch(net, epsilon=0.1)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    found = Adversarial(steps=20).attack(batch)
    assert (found - batch.images).abs().max().item() <= 0.1 + 1e-6
    assert found.min().item() >= 0.0
    assert found.max().item() <= 1.0
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())  # BatchNorm was frozen
    assert net.training
    next(net.children()).eval()  # a part that its owner has frozen stays so
    modes = [module.training for module in net.modules()]
    Adversarial(steps=1).attack(batch)
    assert [module.training for module in net.modules()] == modes
    net.eval()
    clean, attacked = (F.cross_entropy(net(x), batch.labels) for x in (batch.images, found))
    assert attacked.item() > clean.item()


def test_attack_finds_the_corner_of_a_linear_net() -> None:
    net = torch.nn.Linear(4, 3)
    batch = tiny_batch(net, epsilon=0.05)
    batch = replace(batch, images=batch.images * 0.5 + 0.25, labels=torch.zeros_like(batch.labels), clip=None)
    found = Adversarial(steps=7, step_size=0.1).attack(batch)
    assert ((found - batch.images).abs() <= 0.05 + 1e-6).all()
    worst = (net(found) - net(found)[:, :1]).amax(1)
    start = (net(batch.images) - net(batch.images)[:, :1]).amax(1)
    assert (worst >= start - 1e-6).all()


def test_adversarial_depends_on_its_generator_alone() -> None:
    net = tiny_net()
    losses = {Adversarial().loss(tiny_batch(net)).value.item() for _ in range(2)}
    assert len(losses) == 1


def test_methods_are_registered_once() -> None:
    assert METHODS["nominal"] is Nominal
    assert METHODS["adversarial"] is Adversarial
    assert METHODS["ibp"] is IBP

    @dataclass(frozen=True)
    class Impostor(Method):
        name: ClassVar[str] = "ibp"

        def loss(self, batch: Batch) -> Loss:
            raise NotImplementedError

    with pytest.raises(ValueError, match="named 'ibp' is registered already"):
        register(Impostor)


def test_bad_methods() -> None:
    with pytest.raises(ConfigError, match="unknown objective 'l2': use one of cross_entropy, softplus, hinge"):
        IBP(objective="l2")
    with pytest.raises(ConfigError, match="steps >= 1"):
        Adversarial(steps=0)
    batch = replace(tiny_batch(tiny_net()), traced=None)
    with pytest.raises(ConfigError, match="bound_based = True"):
        IBP().loss(batch)
