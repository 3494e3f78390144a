"""Bounds without gradients work in place, where that is nobody else's memory, and give the same result."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb
from benchmarks.common import peak_bytes
from surebound.bounds.interval import overwriting
from surebound.graph import program_of
from surebound.rules import affine

MODES = ("none", "real", "deployed")


class Diamond(nn.Module):
    """Values with several readers, also through views: overwriting any of them would show."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.last = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        flat = h.flatten(2)
        left = F.relu(flat).reshape(h.shape)
        right = self.c(F.relu(self.b(h)))
        return self.last((left + right - h).flatten(1))


NETS = {
    "diamond": Diamond,
    "small": lambda: sb.models.small((1, 12, 12)),
    "norm": lambda: sb.models.small((1, 12, 12), batch_norm=True),
    "residual": lambda: sb.models.WideResNet((1, 12, 12), 10, 10, 1, None, None, batch_norm=False),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NETS)
def test_in_place_bounds_contain_the_ordinary_network_and_equal_the_ordinary_bounds(name, mode):
    torch.manual_seed(0)
    net = NETS[name]().eval()
    x = torch.rand(4, 1, 6, 6) if name == "diamond" else torch.rand(4, 1, 12, 12)
    kept = x.clone()
    region = sb.LinfBall(x, "1/50", clip=(0, 1))
    ordinary = sb.interval_bounds(net, region, mode)
    with torch.no_grad():
        quick = sb.interval_bounds(net, region, mode)
        again = sb.interval_bounds(net, region, mode)
    assert torch.equal(x, kept)
    assert torch.equal(quick.upper, again.upper)
    width = (ordinary.upper - ordinary.lower).detach().max()
    torch.testing.assert_close(quick.upper, ordinary.upper.detach(), atol=1e-5 * float(width), rtol=1e-5)
    torch.testing.assert_close(quick.lower, ordinary.lower.detach(), atol=1e-5 * float(width), rtol=1e-5)
    for _ in range(20):
        z = net((x + (torch.rand_like(x) * 2 - 1) / 50).clamp(0, 1))
        slack = 1e-4 if mode == "none" else 0.0
        assert bool((z >= quick.lower - slack).all() and (z <= quick.upper + slack).all())


def test_nothing_with_a_second_reader_is_overwritten():
    graph = program_of(Diamond(), torch.zeros(1, 1, 6, 6)).graph
    calls = overwriting(graph)
    first = next(node.name for node in graph.nodes if node.op == "aten.conv2d.default")
    readers = [node.name for node in graph.nodes if first in node.refs()]
    assert len(readers) > 1
    assert not calls & set(readers)
    views = [name for name in readers if graph.by_name[name].op == "aten.view.default"]
    assert views
    assert not calls & {node.name for node in graph.nodes if set(views) & set(node.refs())}
    chain = program_of(sb.models.small((1, 12, 12)), torch.zeros(1, 1, 12, 12)).graph
    expected = {n.name for n in chain.nodes if n.varies} - {chain.nodes[0].name}
    assert overwriting(chain) >= {n.name for n in chain.nodes if n.op == "aten.relu.default"}
    assert overwriting(chain) <= expected


def test_blocks_of_a_large_matrix_give_the_same_product(monkeypatch):
    torch.manual_seed(0)
    net, region = nn.Linear(11, 37), sb.LinfBall(torch.rand(3, 11), eps="1/10")
    with torch.no_grad():
        expected = {mode: sb.interval_bounds(net, region, mode) for mode in MODES}
        monkeypatch.setattr(affine, "BLOCK", 40)
        for mode, whole in expected.items():
            blocks = sb.interval_bounds(net, region, mode)
            torch.testing.assert_close(blocks.lower, whole.lower)
            torch.testing.assert_close(blocks.upper, whole.upper)


@pytest.mark.parametrize("mode", MODES)
def test_the_caller_s_region_is_never_overwritten(mode):
    torch.manual_seed(0)
    net, x = sb.models.small((1, 12, 12)), torch.rand(2, 1, 12, 12)
    low, high = x - 0.1, x + 0.1
    kept = [v.clone() for v in (x, low, high)]
    with torch.no_grad():
        for region in (sb.Box(low, high), sb.LinfBall(x, eps=0), sb.LinfBall(x, eps="1/10", clip=(0, 1))):
            first = sb.interval_bounds(net, region, mode)
            again = sb.interval_bounds(net, region, mode)
            assert torch.equal(first.lower, again.lower)
            assert torch.equal(first.upper, again.upper)
    assert all(torch.equal(a, b) for a, b in zip((x, low, high), kept, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_a_chain_holds_three_of_its_largest_values_at_a_time(mode):
    """The two of a product's result and one of its argument's: whoever keeps a reference to more shows here."""
    torch.manual_seed(0)
    net = sb.models.small().eval().requires_grad_(False)
    region, largest = sb.LinfBall(torch.rand(100, 1, 28, 28), "1/10", clip=(0, 1)), 4 * 100 * 32 * 10 * 10
    sb.interval_bounds(net, region, mode)  # traced, and kernels built
    assert peak_bytes(lambda: sb.interval_bounds(net, region, mode)) / largest <= 3.2
