"""What the checker pays for rounding: its float64 bounds against fractions, and against float32 sums in any order."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.checker.checker import CheckedNetwork, Numbers


def checked(net: nn.Sequential, inputs: int, path: Path, *, deployed: bool) -> CheckedNetwork:
    """Return a network as the checker reads it, in float64."""
    x = torch.zeros(1, inputs)
    sb.verify(net, sb.LinfBall(x, 0), net(x).argmax(1), "fast", certificates=path)
    return CheckedNetwork((path / "network.net").read_bytes(), Numbers(False, deployed))


def exactly(net: nn.Sequential, x: list[Fraction]) -> list[Fraction]:
    """Compute a network of linear layers and ReLUs in fractions."""
    for layer in net:
        if isinstance(layer, nn.Linear):
            weight, bias = layer.weight.tolist(), layer.bias.tolist()
            sums = [sum((Fraction(w) * v for w, v in zip(row, x, strict=True)), Fraction(0)) for row in weight]
            x = [total + Fraction(b) for total, b in zip(sums, bias, strict=True)]
        else:
            x = [max(v, Fraction(0)) for v in x]
    return x


def sized(draw: torch.Generator, *shape: int) -> Tensor:
    """Draw numbers of very different sizes, whose sums round."""
    return torch.randn(shape, generator=draw) * 2.0 ** torch.randint(-10, 11, shape, generator=draw)


@pytest.mark.parametrize("linear", [False, True])
def test_bounds_of_a_point_are_not_below_its_exact_value(linear: bool, tmp_path: Path) -> None:
    draw, seen = torch.Generator().manual_seed(4), set[bool]()
    for number in range(12):
        net = nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)).requires_grad_(False)
        for layer in (net[0], net[2]):
            layer.weight.copy_(sized(draw, *layer.weight.shape))
            layer.bias.copy_(sized(draw, *layer.bias.shape))
        x = sized(draw, 1, 9)
        network = checked(net, 9, tmp_path / str(number), deployed=False)
        network.over((x.double().numpy(), x.double().numpy()), linear)
        value, exact = len(network.steps), exactly(net, [Fraction(v) for v in x[0].tolist()])
        rows = np.concatenate([np.eye(3), -np.eye(3), sized(draw, 6, 3).double().numpy()])
        bounds = network.back(value, rows)
        for row, bound in zip(rows.tolist(), bounds.tolist(), strict=True):
            true = sum((Fraction(a) * z for a, z in zip(row, exact, strict=True)), Fraction(0))
            assert true <= Fraction(bound)
            plain = np.asarray(row) @ net.double()(x.double())[0].numpy()
            seen.add(Fraction(float(plain)) < true)
        net.float()
    assert True in seen  # plain float64 is below the exact value: something has to be paid


def test_float32_sums_in_any_order_stay_below(tmp_path: Path) -> None:
    """Two equal units cancel over the reals, and do not where each sums in an order of its own."""
    draw = torch.Generator().manual_seed(5)
    net = nn.Sequential(nn.Linear(64, 2), nn.Linear(2, 2)).requires_grad_(False)
    net[0].weight.copy_(torch.rand(1, 64, generator=draw).expand(2, 64) + 0.5)
    net[0].bias.zero_()
    net[1].weight.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    net[1].bias.zero_()
    network = checked(net, 64, tmp_path, deployed=True)
    x = -torch.rand(1, 64, generator=draw) - 0.5
    for low, high in ((x, torch.zeros_like(x)), (torch.zeros_like(x), -x)):
        network.over((low.double().numpy(), high.double().numpy()), True)
        bound = float(network.back(len(network.steps), np.eye(2)).max())
        terms, furthest = net[0].weight[0] * (low + high)[0], 0.0
        for _ in range(50):
            sums = []
            for _ in range(2):
                total = torch.zeros(())
                for term in terms[torch.randperm(64, generator=draw)]:
                    total = total + term
                sums.append(total)
            furthest = max(furthest, float((sums[0] - sums[1]).abs()))
        assert 0 < furthest <= bound < 1e-2
