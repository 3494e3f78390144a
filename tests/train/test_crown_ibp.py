"""CROWN-IBP: its schedule, its mixture, and that the fused loss sends one row back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.crown import Crown
from surebound.bounds.training import dual
from surebound.errors import ConfigError
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.spec import classification
from surebound.train.methods import CROWNIBP, IBP, METHODS
from tests.train.nets import reference_margins, tiny_batch, tiny_net


def test_it_is_known_by_name() -> None:
    assert METHODS["crown-ibp"] is CROWNIBP


@pytest.mark.parametrize(("epsilon", "expected"), [(0.0, 1.0), (0.05, 0.6), (0.1, 0.2), (0.2, 0.2)])
def test_beta_follows_the_radius(epsilon: float, expected: float) -> None:
    assert CROWNIBP(beta_start=1.0, beta_final=0.2).beta(epsilon, 0.1) == pytest.approx(expected)


def test_beta_outside_its_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="beta_final must be between 0 and 1, got 1.5"):
        CROWNIBP(beta_final=1.5)


def test_the_loss_is_a_mixture_of_margins() -> None:
    net = tiny_net().eval()
    batch = tiny_batch(net, epsilon=0.05, kappa=0.3)  # half of eps_train: beta 0.75
    box = Interval((batch.images - 0.05).clamp(0, 1), (batch.images + 0.05).clamp(0, 1))
    rows = classification(batch.labels, 3, torch.float32).rows(8, 3)
    linear = Crown(intermediate="interval").margins(batch.program, box, *rows, Soundness.NONE)
    interval = reference_margins(net, batch.images, batch.labels, 0.05)
    mixed = 0.75 * linear + 0.25 * interval
    expected = 0.3 * F.cross_entropy(net(batch.images), batch.labels) + 0.7 * F.cross_entropy(mixed, batch.labels)
    loss = CROWNIBP(beta_final=0.5, fused=False).loss(batch)
    assert loss.value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert set(loss.scalars) == {"clean_error", "verified_error"}


@pytest.mark.parametrize("fused", [False, True])
def test_without_linear_bounds_it_is_ibp(fused: bool) -> None:
    batch = tiny_batch(tiny_net(), epsilon=0.1, kappa=0.5)
    found = CROWNIBP(beta_final=0.0, fused=fused).loss(batch).value.item()
    assert found == pytest.approx(IBP().loss(batch).value.item(), rel=1e-6)


def test_the_fused_loss_sends_one_row_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    real = Relaxed.pull

    def spy(self: Relaxed, start: str, a: Tensor, offset: Tensor, **rest: object) -> object:
        sent.append(a.shape[0])
        return real(self, start, a, offset, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(dual.Relaxed, "pull", spy)
    batch = tiny_batch(tiny_net(), epsilon=0.05)
    CROWNIBP(fused=True).loss(batch)
    CROWNIBP(fused=False).loss(batch)
    assert sent == [1, 2]


@pytest.mark.parametrize("fused", [False, True])
def test_training_mode_with_batch_norm(fused: bool) -> None:
    net = tiny_net(batch_norm=True)
    before = net[1].running_mean.clone()
    loss = CROWNIBP(fused=fused).loss(tiny_batch(net, epsilon=0.05))
    loss.value.backward()
    assert not torch.equal(before, net[1].running_mean)
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


def test_the_fused_loss_is_never_below_the_attacked_one() -> None:
    net = tiny_net().eval()
    batch = tiny_batch(net, epsilon=0.05, kappa=0.0)
    bound = CROWNIBP(beta_final=1.0).loss(batch).value.item()
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        noise = (torch.rand(batch.images.shape, generator=generator) - 0.5).sign() * 0.05
        reached = F.cross_entropy(net((batch.images + noise).clamp(0, 1)), batch.labels).item()
        assert reached <= bound + 1e-6
