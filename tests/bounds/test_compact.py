"""Compact networks: the same outputs on the region, fewer channels, usable like any other network."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound import models
from surebound.errors import BoundError, InputError

SHAPE = (1, 12, 12)


def trained(net: nn.Module) -> nn.Module:
    """Random statistics, and biases that turn part of the channels off for any image, as training does."""
    torch.manual_seed(1)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm1d)):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
                module.weight.normal_()
                module.bias[::3] -= 60.0
            elif isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
                module.bias.normal_(std=0.1)
                if module.bias.shape[0] > 10:
                    module.bias[::3] -= 60.0
    return net.eval()


class Mixed(nn.Module):
    """A ReLU read by two layers, one read by something else, padding, and a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Conv2d(1, 12, 3, bias=False), nn.Conv2d(12, 12, 3, padding=1)
        self.left, self.right = nn.Conv2d(12, 4, 1), nn.Conv2d(12, 4, 3)
        self.last = nn.Linear(4 * 100 + 4 * 100, 3)
        self.shift = nn.Parameter(torch.zeros(12, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = (self.first(x) + self.shift).relu()
        h = self.twice(h).relu()
        h = self.twice(h).relu()
        right = self.right(nn.functional.pad(h, (1, 1, 1, 1)))
        return self.last(torch.cat([self.left(h).flatten(1), right.reshape(-1, 400)], 1))


NETS = {
    "small": lambda: models.small(SHAPE),
    "small-bn": lambda: models.small(SHAPE, batch_norm=True),
    "large": lambda: models.large((1, 8, 8)),
    "residual": lambda: models.WideResNet(SHAPE, 10, 10, 1, None, None, batch_norm=True),
    "normalised": lambda: models.small(SHAPE, mean=(0.2,), std=(0.5,)),
    "toy": lambda: models.toy(),
    "mixed": lambda: Mixed(),
}


def inputs(name: str, count: int) -> Tensor:
    shape = {"large": (1, 8, 8), "toy": (2,)}.get(name, SHAPE)
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", NETS)
def test_outputs_are_the_same_over_the_domain(name):
    net = trained(NETS[name]()).double()
    x = inputs(name, 40).double()
    small = sb.compact(net, sb.Box(torch.zeros_like(x[:1]), torch.ones_like(x[:1])))
    corners = torch.cat([x, x.round()])
    torch.testing.assert_close(small(corners), net(corners), rtol=1e-9, atol=1e-9)
    if name != "mixed":  # there a layer that is used twice becomes two
        assert sum(v.numel() for v in small.buffers()) < sum(p.numel() for p in net.parameters())
    assert any(left < of for left, of in small.kept.values())


def test_float32_outputs_differ_by_rounding_only_and_every_layer_got_narrower():
    net = trained(models.small(SHAPE))
    x = inputs("small", 20)
    small = sb.compact(net, sb.Box(torch.zeros_like(x[:1]), torch.ones_like(x[:1])))
    torch.testing.assert_close(small(x), net(x))
    (a, b, c, last) = small.kept.values()
    assert a[0] <= 10 < a[1] and b[0] <= 21 < b[1] and c[0] <= 66 < c[1] and last == (10, 10)


def test_a_region_gives_a_smaller_network_than_the_domain():
    torch.manual_seed(0)
    net, x = models.small(SHAPE), inputs("small", 1)
    everywhere = sb.compact(net, sb.Box(torch.zeros_like(x), torch.ones_like(x)))
    here = sb.compact(net, sb.LinfBall(x, "1/1000", clip=(0, 1)))
    assert sum(k for k, _ in here.kept.values()) < sum(k for k, _ in everywhere.kept.values())
    near = (x + 0.001 * (2 * torch.rand(50, *SHAPE) - 1)).clamp(0, 1)
    torch.testing.assert_close(here(near), net(near))


def test_a_compact_network_is_a_network():
    """It is bounded no looser, verified to the same verdict, and its state can be saved and loaded."""
    net = trained(models.small(SHAPE, batch_norm=True))
    x = inputs("small", 2)
    region, labels = sb.LinfBall(x, "1/500", clip=(0, 1)), net(x).argmax(1)
    small = sb.compact(net, region)
    wide = sb.worst_margins(net, region, labels)
    torch.testing.assert_close(sb.worst_margins(small, region, labels), wide, rtol=1e-2, atol=1e-2)
    verdicts = [
        [r.verdict.status for r in sb.verify(n, sb.LinfBall(x, "1/500", clip=(0, 1)), labels, "fast").records]
        for n in (net, small)
    ]
    assert verdicts[0] == verdicts[1]
    other = copy.deepcopy(small)
    other.load_state_dict(small.state_dict())
    assert torch.equal(other(x), small(x))


def test_nothing_of_the_original_is_changed():
    net = trained(models.small(SHAPE, batch_norm=True))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    sb.compact(net, sb.Box(torch.zeros(1, *SHAPE), torch.ones(1, *SHAPE)))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_a_network_that_is_off_altogether():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    net[0].bias.data.fill_(-50.0)
    small = sb.compact(net, sb.Box(torch.zeros(1, 2), torch.ones(1, 2)))
    x = torch.rand(5, 2)
    assert small.kept["0"] == (1, 3) and torch.equal(small(x), net(x))


def test_unsound_bounds_are_no_proof():
    with pytest.raises(BoundError, match="proves nothing: use 'deployed' or 'real'"):
        sb.compact(nn.Linear(2, 2), sb.Box(torch.zeros(1, 2), torch.ones(1, 2)), soundness="none")


def test_pruning_is_measured_and_proves_nothing_about_the_original() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(False)
    net[0].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.5, 5e-4], [1.0, 1.0]]))
    net[0].bias.copy_(torch.tensor([0.0, -0.95, 0.0, -9.0]))  # always on, rarely on, with a small weight, proved off
    net[2].weight.fill_(1.0)
    x = torch.linspace(0, 1, 100).unsqueeze(1).expand(-1, 2).contiguous()
    region = sb.Box(torch.zeros(1, 2), torch.ones(1, 2))
    exact = sb.compact(net, region)
    assert (exact.kept["0"], exact.change) == ((3, 4), None)
    pruned = sb.compact(net, region, prune=sb.bounds.Pruning(x))
    assert pruned.kept["0"] == (2, 4)
    expected = x.sum(1) + 0.5 * x[:, 0]  # without the rare unit and the small weight
    torch.testing.assert_close(pruned(x)[:, 0] - net[2].bias[0], expected)
    assert pruned.change is not None
    assert pruned.change.inputs == 100
    assert pruned.change.largest == pytest.approx(float((net(x) - pruned(x)).abs().max()))
    assert pruned.change.largest == pytest.approx(0.05 + 5e-4, rel=1e-3)
    only_weights = sb.compact(net, region, prune=sb.bounds.Pruning(x, relus=0.0))
    assert only_weights.kept["0"] == (3, 4)
    with pytest.raises(InputError, match="needs inputs to count on"):
        sb.bounds.Pruning(x[:0])
