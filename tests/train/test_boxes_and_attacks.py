"""SABR and TAPS: small boxes and hidden boxes, against plain PyTorch and at their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surebound.bounds.training.latent import SecondPart, latent_value, linked
from surebound.errors import ConfigError
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.train.methods import IBP, SABR, TAPS, Batch, InnerAttack
from surebound.train.methods.sabr import small_box
from surebound.train.regularise import BoundRegulariser
from tests.train.nets import reference_margins, tiny_batch, tiny_net
from tests.train.test_expressive import corner

CORNER = InnerAttack(random_start=False)


def gradients(net: nn.Module, value: Tensor) -> list[Tensor]:
    net.zero_grad()
    value.backward()
    return [p.grad.clone() for p in net.parameters()]


def test_sabr_is_ibp_of_the_small_box() -> None:
    net = tiny_net()
    batch = tiny_batch(net, epsilon=0.1)
    found = corner(net, batch.images, batch.labels, 0.1)
    centers = torch.minimum(torch.maximum(found, batch.images - 0.07), batch.images + 0.07)
    margins = reference_margins(net, centers, batch.labels, 0.03)
    loss = SABR(size=0.3, attack=CORNER).loss(batch)
    expected = F.cross_entropy(margins, batch.labels)
    assert loss.value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert set(loss.scalars) == {"box_error"}
    for mine, theirs in zip(gradients(net, loss.value), gradients(net, expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("regulariser", [None, BoundRegulariser(tolerance=1.0)])
def test_sabr_of_the_whole_ball_is_ibp(batch_norm: bool, regulariser: BoundRegulariser | None) -> None:
    net = tiny_net(batch_norm)
    batch = tiny_batch(net, epsilon=0.05, kappa=0.0)
    expected = IBP(regulariser=regulariser).loss(batch).value.item()
    assert SABR(size=1.0, regulariser=regulariser).loss(batch).value.item() == expected
    clean = replace(batch, epsilon=0.0)
    assert SABR(size=0.2).loss(clean).value.item() == IBP().loss(clean).value.item()


@pytest.mark.parametrize("size", [0.05, 0.5, 0.95])
def test_small_boxes_lie_inside_the_ball_and_keep_the_ramp(size: float) -> None:
    batch = tiny_batch(tiny_net(), epsilon=0.05)
    inside = small_box(batch, size, InnerAttack(scale=2.0))
    assert ((inside.images - batch.images).abs() + inside.epsilon <= batch.epsilon + 1e-7).all()
    assert inside.epsilon / inside.eps_train == pytest.approx(batch.epsilon / batch.eps_train)
    assert SABR(size=size).loss(batch).value.item() <= IBP().loss(replace(batch, kappa=0.0)).value.item()


def latent(net: nn.Sequential, batch: Batch, layers: int) -> tuple[Tensor, Tensor]:
    """Interval bounds of the first layers of a net without BatchNorm."""
    lower, upper = ((batch.images + s * batch.epsilon).clamp(0, 1) for s in (-1, 1))
    for layer in list(net)[:layers]:
        if isinstance(layer, nn.Linear):
            mid, rad = (lower + upper) / 2, (upper - lower) / 2
            mid, rad = layer(mid), rad @ layer.weight.abs().T
            lower, upper = mid - rad, mid + rad
        else:
            lower, upper = layer(lower), layer(upper)
    return lower, upper


def test_taps_is_the_product_of_two_losses() -> None:
    """Against PyTorch modules: one step from a known point, in the box behind the first activation."""
    net = tiny_net()
    batch = tiny_batch(net, epsilon=0.05)
    loss = TAPS(activations=1, steps=1).loss(replace(batch, generator=torch.Generator().manual_seed(3)))
    got = gradients(net, loss.value)
    lower, upper = latent(net, batch, 2)
    draws = torch.rand(8 * 3, 6, generator=torch.Generator().manual_seed(3)).view(8, 3, 6)
    attacked = torch.zeros(8, 3)
    for i, label in enumerate(batch.labels.tolist()):
        for k in range(3):
            low, up = lower[i], upper[i]
            point = (low + (up - low) * draws[i, k]).detach().requires_grad_()
            z = net[2:](point[None])[0]
            (g,) = torch.autograd.grad(z[k] - z[label], point)
            best = torch.where(g > 0, up, torch.where(g < 0, low, point)).detach()
            to_low, to_up = ((1 - (best - end).abs() / (0.5 * (up - low))).clamp_min(0) for end in (low, up))
            flat = up == low
            to_low, to_up = (torch.where(flat, 0.5, w).nan_to_num(0.5).detach() for w in (to_low, to_up))
            best = best + to_low * (low - low.detach()) + to_up * (up - up.detach())
            z = net[2:](best[None])[0]
            attacked[i, k] = z[k] - z[label]
    margins = reference_margins(net, batch.images, batch.labels, 0.05)
    first, second = (F.cross_entropy(m, batch.labels, reduction="none") for m in (attacked, margins))
    expected = (first * second).mean()
    assert loss.value.item() == pytest.approx(expected.item(), rel=1e-5)
    for mine, theirs in zip(got, gradients(net, expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_an_attack_on_affine_layers_finds_the_margins_of_the_box(batch_norm: bool) -> None:
    net = tiny_net(batch_norm)
    batch = tiny_batch(net, epsilon=0.05, kappa=0.0)
    loss = TAPS(activations=0, steps=1).loss(batch)
    net = tiny_net(batch_norm)
    margins = batch.bounded(clean=False, batch_statistics=True).computed_margins
    bounded = F.cross_entropy(margins, batch.labels, reduction="none")
    assert loss.value.item() == pytest.approx((bounded**2).mean().item(), rel=1e-5)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("size", [1.0, 0.5])
def test_attacked_margins_are_never_above_the_bounds(batch_norm: bool, size: float) -> None:
    net = tiny_net(batch_norm)
    batch = tiny_batch(net, epsilon=0.1)
    cut = latent_value(batch.program.graph, 1)
    inside = small_box(batch, size, InnerAttack())
    done = inside.bounded(clean=False, batch_statistics=True, keep=(cut,))
    second = SecondPart(batch.program, cut, done.norms)
    found = TAPS()._attacked(batch, second, done.kept[cut])
    assert (found <= done.computed_margins + 1e-5).all()
    assert (found.gather(1, batch.labels[:, None]) == 0).all()
    value = TAPS(size=size).loss(batch).value
    assert torch.isfinite(value)
    assert all(torch.isfinite(g).all() for g in gradients(net, value))


def test_the_weight_shifts_the_gradient_and_not_the_value() -> None:
    attacked, bounded = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    for weight, expected in ((1.0, (3.0, 2.0)), (3.0, (4.5, 1.0))):
        value = TAPS(weight=weight)._product(attacked, bounded)
        assert value.item() == pytest.approx(6.0)
        found = torch.autograd.grad(value, (attacked, bounded))
        assert tuple(g.item() for g in found) == pytest.approx(expected)


def test_taps_at_radius_0_is_the_clean_loss() -> None:
    net = tiny_net()
    batch = tiny_batch(net, epsilon=0.0)
    clean = F.cross_entropy(net(batch.images), batch.labels).item()
    assert TAPS().loss(batch).value.item() == pytest.approx(clean, rel=1e-6)


@pytest.mark.parametrize(
    ("at", "to_lower", "to_upper"), [(0.0, 1.0, 0.0), (0.25, 0.5, 0.0), (0.5, 0.0, 0.0), (1.0, 0.0, 1.0)]
)
def test_gradients_go_to_the_nearer_end(at: float, to_lower: float, to_upper: float) -> None:
    lower, upper = torch.zeros(1, requires_grad=True), torch.ones(1, requires_grad=True)
    point = linked(torch.tensor([at]), lower, upper, 0.5)
    assert point.item() == at
    assert [g.item() for g in torch.autograd.grad(point, (lower, upper))] == pytest.approx([to_lower, to_upper])
    low, up = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    assert [g.item() for g in torch.autograd.grad(linked(torch.ones(1), low, up, 0.5), (low, up))] == [0.5, 0.5]


class Bypass(nn.Module):
    """A network that reads an early value behind its last activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.last(torch.relu(self.second(h)) + h)


def test_the_second_part_is_the_rest_of_the_network() -> None:
    net = tiny_net(batch_norm=True).eval()
    x = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    program = program_of(net, x)
    for activations, layers in ((0, 6), (1, 3)):
        second = SecondPart(program, latent_value(program.graph, activations), {})
        torch.testing.assert_close(second(net[:layers](x)), net(x))


def test_bad_settings_and_networks_that_cannot_be_cut() -> None:
    with pytest.raises(ConfigError, match="must be above 0 and at most 1, got 0"):
        SABR(size=0.0)
    with pytest.raises(ConfigError, match="TAPS needs activations >= 0"):
        TAPS(link=0.0)
    batch = tiny_batch(tiny_net())
    with pytest.raises(ConfigError, match="may hold 0 to 1 of them, got 2"):
        TAPS(activations=2).loss(batch)
    net = Bypass()
    with pytest.raises(ConfigError, match="cannot be cut at"):
        TAPS(activations=0).loss(replace(batch, model=net, traced=program_of(net, batch.images)))


def test_intervals_of_hidden_boxes_are_the_passes_own() -> None:
    net = tiny_net()
    batch = tiny_batch(net, epsilon=0.05)
    cut = latent_value(batch.program.graph, 1)
    kept = batch.bounded(clean=False, keep=(cut,)).kept[cut]
    assert isinstance(kept, Interval)
    for mine, theirs in zip((kept.lower, kept.upper), latent(net, batch, 2), strict=True):
        torch.testing.assert_close(mine, theirs)
