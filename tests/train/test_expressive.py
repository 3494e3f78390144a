"""Losses that join an attack with interval bounds: against plain PyTorch, at their limits, and in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surebound.errors import ConfigError
from surebound.train.methods import CCIBP, IBP, MTLIBP, Adversarial, ExpIBP, InnerAttack
from surebound.train.methods.expressive import Expressive
from surebound.train.regularise import BoundRegulariser
from tests.train.nets import tiny_batch, tiny_net

CORNER = InnerAttack(random_start=False, scale=1.5)
METHODS: list[type[Expressive]] = [MTLIBP, CCIBP, ExpIBP]


def corner(net: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """One signed step from x, in evaluation mode, to a corner of the ball."""
    net.eval()
    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(net(point), y), point)
    net.train()
    return torch.where(gradient > 0, (x + eps).clamp(max=1), torch.where(gradient < 0, (x - eps).clamp(min=0), x))


def reference(net: nn.Sequential, point: Tensor, x: Tensor, y: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Logits (B, K) at the point and margins (B, K) of the ball; BatchNorm by the statistics of the points."""
    lower, upper = (x - eps).clamp(0, 1), (x + eps).clamp(0, 1)
    *layers, last = net
    for layer in layers:
        if isinstance(layer, nn.Linear):
            mid, rad = (lower + upper) / 2, (upper - lower) / 2
            mid, rad = mid @ layer.weight.T + layer.bias, rad @ layer.weight.abs().T
            lower, upper, point = mid - rad, mid + rad, layer(point)
        elif isinstance(layer, nn.BatchNorm1d):
            scale = layer.weight / (point.var(0, unbiased=False) + layer.eps).sqrt()
            shift = layer.bias - point.mean(0) * scale
            ends = torch.stack([lower * scale + shift, upper * scale + shift])
            lower, upper, point = ends.amin(0), ends.amax(0), point * scale + shift
        else:
            lower, upper, point = layer(lower), layer(upper), layer(point)
    mid, rad = (lower + upper) / 2, (upper - lower) / 2
    rows = last.weight - last.weight[y][:, None]  # (B, K, H)
    margins = (rows @ mid[:, :, None] + rows.abs() @ rad[:, :, None]).squeeze(2) + last.bias - last.bias[y][:, None]
    return last(point), margins


def formula(method: Expressive, logits: Tensor, margins: Tensor, y: Tensor) -> Tensor:
    """The published equation."""
    a = method.alpha
    if isinstance(method, CCIBP):
        true = torch.stack([row[label] for row, label in zip(logits, y, strict=True)])
        return F.cross_entropy((1 - a) * (logits - true[:, None]) + a * margins, y)
    attacked, bounded = (F.cross_entropy(v, y, reduction="none") for v in (logits, margins))
    if isinstance(method, ExpIBP):
        return (attacked ** (1 - a) * bounded**a).mean()
    return ((1 - a) * attacked + a * bounded).mean()


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_value_and_gradient_are_the_papers(kind: type[Expressive], batch_norm: bool) -> None:
    net = tiny_net(batch_norm)
    batch = tiny_batch(net, epsilon=0.07)
    method = kind(alpha=0.3, attack=CORNER)
    point = corner(net, batch.images, batch.labels, 0.105)
    torch.testing.assert_close(CORNER(batch), point)
    loss = method.loss(batch)
    loss.value.backward()
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    expected = formula(method, *reference(net, point, batch.images, batch.labels, 0.07), batch.labels)
    expected.backward()
    assert loss.value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert set(loss.scalars) == {"attacked_error", "verified_error"}
    for mine, p in zip(got, net.parameters(), strict=True):
        torch.testing.assert_close(mine, p.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_alpha_1_is_ibp_and_alpha_0_is_adversarial(kind: type[Expressive], batch_norm: bool) -> None:
    net = tiny_net(batch_norm)
    batch = tiny_batch(net, epsilon=0.07, kappa=0.0)
    assert kind(alpha=1.0).loss(batch).value.item() == IBP().loss(batch).value.item()
    method = kind(alpha=0.0, attack=CORNER)
    point = corner(net, batch.images, batch.labels, 0.105)  # before running statistics move
    value = method.loss(batch).value.item()
    assert value == pytest.approx(F.cross_entropy(net(point), batch.labels).item(), rel=1e-6)
    clean = F.cross_entropy(net(batch.images), batch.labels).item()
    assert kind(alpha=0.4).loss(replace(batch, epsilon=0.0)).value.item() == pytest.approx(clean, rel=1e-6)


@pytest.mark.parametrize("kind", METHODS)
def test_the_loss_rises_with_alpha(kind: type[Expressive]) -> None:
    net = tiny_net()
    values = [kind(alpha=a).loss(tiny_batch(net, epsilon=0.1)).value.item() for a in (0.0, 1e-3, 0.1, 0.5, 0.9, 1.0)]
    assert values == sorted(values)
    assert values[0] < values[-1]


@pytest.mark.parametrize("alpha", [0.01, 0.5, 0.99])
def test_mixing_losses_is_the_largest_of_the_three(alpha: float) -> None:
    net = tiny_net()
    batch = tiny_batch(net, epsilon=0.1)
    mtl, cc, exp = (kind(alpha=alpha, attack=CORNER).loss(batch).value.item() for kind in METHODS)
    assert cc <= mtl
    assert exp <= mtl


def test_exp_ibp_of_a_loss_that_is_0_has_finite_gradients() -> None:
    logits = torch.tensor([[200.0, 0.0], [1.0, 0.0]], requires_grad=True)
    margins = torch.tensor([[0.0, 1.0], [0.0, 2.0]], requires_grad=True)
    ExpIBP(alpha=0.5).joined(logits, margins, torch.zeros(2, dtype=torch.long), 0.5).backward()
    assert torch.isfinite(logits.grad).all()
    assert torch.isfinite(margins.grad).all()


def test_alpha_ramps_with_the_radius() -> None:
    net = tiny_net()
    batch = tiny_batch(net, epsilon=0.05)  # half of eps_train
    ramped = MTLIBP(alpha=0.6, ramp_alpha=True, attack=CORNER)
    fixed = MTLIBP(alpha=0.3, attack=CORNER)
    assert ramped.loss(batch).value.item() == pytest.approx(fixed.loss(batch).value.item(), rel=1e-6)


def test_regulariser_adds_its_penalty_in_the_ramp() -> None:
    net = tiny_net()
    method = MTLIBP(alpha=0.0, attack=CORNER, regulariser=BoundRegulariser(tolerance=1.0))
    plain = MTLIBP(alpha=0.0, attack=CORNER)
    for epsilon, present in ((0.05, True), (0.1, False)):
        batch = tiny_batch(net, epsilon=epsilon)
        loss = method.loss(batch)
        assert ("regulariser" in loss.scalars) is present
        extra = 0.25 * loss.scalars["regulariser"].item() if present else 0.0
        assert loss.value.item() == pytest.approx(plain.loss(batch).value.item() + extra, rel=1e-5)


def test_inner_attack_stays_in_its_ball_and_leaves_the_network_alone() -> None:
    net = tiny_net(batch_norm=True)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    batch = tiny_batch(net, epsilon=0.1)
    for attack in (InnerAttack(scale=2.0), InnerAttack(steps=5), InnerAttack(steps=3, step_size=0.3)):
        found = attack(batch)
        assert (found - batch.images).abs().max().item() <= 0.1 * attack.scale + 1e-6
        assert found.min().item() >= 0.0
        assert found.max().item() <= 1.0
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert net.training
    net.eval()
    clean, attacked = (
        F.cross_entropy(net(x), batch.labels).item() for x in (batch.images, InnerAttack(steps=5)(batch))
    )
    assert attacked > clean


def test_running_statistics_are_those_of_the_attacked_batch() -> None:
    net = tiny_net(batch_norm=True)
    batch = tiny_batch(net, epsilon=0.1)
    point = corner(net, batch.images, batch.labels, 0.15)
    MTLIBP(alpha=0.5, attack=CORNER).loss(batch)
    moved = {k: v.clone() for k, v in net.state_dict().items()}
    other = tiny_net(batch_norm=True)
    Adversarial(steps=1).loss(replace(batch, model=other, images=point, epsilon=0.0))
    for key, value in other.state_dict().items():
        torch.testing.assert_close(moved[key], value)


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="alpha must be between 0"):
        MTLIBP(alpha=1.5)
    for attack in ({"steps": 0}, {"scale": 0.0}, {"step_size": -1.0}):
        with pytest.raises(ConfigError, match="an inner attack needs steps >= 1"):
            InnerAttack(**attack)
