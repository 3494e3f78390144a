"""Networks against the numbers of the paper's table 1 and section 4.2."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound import models


@pytest.mark.parametrize(
    ("build", "hidden", "parameters"),
    [(models.small, 8_308, 470_918), (models.medium, 46_912, 1_188_906), (models.large, 229_888, 17_190_602)],
)
def test_table_1_counts_on_cifar10(build, hidden, parameters):
    net = build((3, 32, 32))
    assert models.parameter_count(net) == parameters
    assert models.hidden_count(net, (3, 32, 32)) == hidden


def test_wide_resnet_has_8m_parameters_and_1_8m_hidden_units():
    net = models.wide_resnet_10_10()
    assert 8.0e6 <= models.parameter_count(net) < 8.1e6
    assert models.hidden_count(net, (3, 56, 56)) == 1_806_336


def test_toy_and_cnn7_shapes():
    assert models.toy()(torch.zeros(3, 2)).shape == (3, 2)
    net = models.cnn7((3, 32, 32)).eval()
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert models.hidden_count(net, (3, 32, 32)) == 229_888


@pytest.mark.parametrize(("width", "hidden"), [(64, 90_624), (32, 45_312)])
def test_cnn5_is_as_wide_as_asked(width: int, hidden: int) -> None:
    net = models.cnn5((3, 32, 32), width=width)
    assert models.hidden_count(net, (3, 32, 32)) == hidden
    assert models.cnn5((1, 28, 28), width=8, batch_norm=False)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize(("size", "stride", "pad"), [(28, 2, (0, 1)), (32, 2, (0, 1)), (28, 1, (1, 1)), (7, 2, (1, 1))])
def test_same_padding_puts_the_odd_pixel_below_and_right(size, stride, pad):
    layer = models.SamePad(3, stride, (size, size))
    assert layer.pad == (*pad, *pad)
    out = nn.Conv2d(1, 1, 3, stride)(layer(torch.zeros(1, 1, size, size)))
    assert out.shape[-1] == -(-size // stride)


def test_initialisation_is_orthogonal_with_zero_bias():
    net = models.small()
    weight = net[2].weight.flatten(1)  # (32, 256)
    torch.testing.assert_close(weight @ weight.T, torch.eye(32), atol=1e-5, rtol=0)
    assert not net[2].bias.any()


def test_normalisation_is_the_first_layer_so_epsilon_is_in_pixels():
    plain, normal = models.small((3, 32, 32)), models.small((3, 32, 32), mean=(0.5,) * 3, std=(0.25,) * 3)
    for mine, theirs in zip(normal.parameters(), plain.parameters(), strict=True):
        mine.data.copy_(theirs.data)
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(normal(x), plain((x - 0.5) / 0.25))
    inner = sb.interval_bounds(plain, sb.LinfBall((x - 0.5) / 0.25, eps="32/255"), "none")
    outer = sb.interval_bounds(normal, sb.LinfBall(x, eps="8/255"), "none")
    torch.testing.assert_close(outer.upper, inner.upper)


def test_residual_network_bounds_contain_samples():
    torch.manual_seed(0)
    net: nn.Module = models.WideResNet((3, 8, 8), 5, 10, 1, None, None, batch_norm=True).eval()
    x = torch.rand(2, 3, 8, 8)
    region = sb.LinfBall(x, "1/50", clip=(0, 1))
    bounds = sb.interval_bounds(net, region)
    for _ in range(50):
        point: Tensor = (x + (torch.rand_like(x) * 2 - 1) / 50).clamp(0, 1)
        assert bool(bounds.contains(net(point)).all())
