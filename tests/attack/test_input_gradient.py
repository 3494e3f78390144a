"""Quick gradients by the input are the library's gradients, and nothing else changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from surebound.attack import input_gradient
from surebound.attack.input_gradient import InputGradients
from surebound.attack.network import AttackedNetwork

CONVOLUTIONS = {
    "paper": nn.Conv2d(1, 16, 4, 2),
    "padded": nn.Conv2d(3, 8, 3, padding=1),
    "oblong": nn.Conv2d(2, 5, (2, 3), stride=(2, 1), padding=(1, 2), dilation=(1, 2), bias=False),
    "left over": nn.Conv2d(1, 4, 3, stride=3),
    "same": nn.Conv2d(1, 4, 3, padding="same"),
    "wide window": nn.Conv2d(8, 4, 3),
    "groups": nn.Conv2d(2, 4, 3, groups=2),
    "circular": nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_values_and_gradients_are_those_of_the_library(name: str) -> None:
    layer = CONVOLUTIONS[name].double()
    x = torch.rand(3, layer.in_channels, 11, 12, dtype=torch.float64, requires_grad=True)
    plain = layer(x)
    with InputGradients():
        quick = layer(x)
    assert torch.equal(plain, quick)
    g = torch.randn_like(plain)
    (wanted,), (found,) = (torch.autograd.grad(y, x, g) for y in (plain, quick))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled, where that pays, and PyTorch's own
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_other_roundings_are_all_that_changes_without_the_same_bits(name: str, dtype: torch.dtype) -> None:
    layer = copy.deepcopy(CONVOLUTIONS[name]).to(dtype)
    x = torch.rand(3, layer.in_channels, 11, 12, dtype=dtype, requires_grad=True)
    plain = layer(x)
    with InputGradients(same_bits=False):
        quick = layer(x)
    torch.testing.assert_close(plain, quick, rtol=1e-5, atol=1e-5)
    g = torch.randn_like(plain)
    (wanted,), (found,) = (torch.autograd.grad(y, x, g) for y in (plain, quick))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_attacks_take_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    taken: list[Tensor] = []
    apply = input_gradient._Convolution.apply
    monkeypatch.setattr(input_gradient._Convolution, "apply", lambda *a: taken.append(a[0]) or apply(*a))
    _, gradient = AttackedNetwork(net).ascent(torch.rand(2, 1, 5, 5), lambda z: z[:, 0])
    assert len(taken) == 1 and bool(gradient.any())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    AttackedNetwork(net).logits(torch.rand(2, 1, 5, 5), rows=8)
    assert len(taken) == 1, "no gradient, no detour"
