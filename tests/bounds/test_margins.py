"""Worst-case margins: elision, any linear specification, many classes, and float soundness."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import surebound as sb
from surebound.bounds import elision
from surebound.bounds.elision import affine_tail
from surebound.bounds.interval import propagate
from surebound.bounds.margins import METHODS
from surebound.bounds.training.engine import training_pass
from surebound.errors import BoundError, RegionError, SpecError
from surebound.graph import program_of
from surebound.numerics import Soundness

MODES = ("none", "real", "deployed")


def net_and_batch(seed: int = 0) -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 5))
    return net, torch.rand(7, 3, 2, 2), torch.randint(0, 5, (7,))


@pytest.mark.parametrize("mode", MODES)
def test_margins_bound_samples_and_are_never_looser_than_without_elision(mode):
    net, x, labels = net_and_batch()
    region = sb.LinfBall(x, "1/10", clip=(0, 1))
    merged = sb.worst_margins(net, region, labels, soundness=mode)
    plain = sb.worst_margins(net, region, labels, soundness=mode, elide=False)
    assert bool((merged <= plain + 1e-6).all()) and bool((merged < plain - 1e-3).any())
    assert bool((merged.gather(1, labels[:, None]) == 0).all())
    for _ in range(200):
        z = net((x + (torch.rand_like(x) * 2 - 1) / 10).clamp(0, 1))
        assert bool((z - z.gather(1, labels[:, None]) <= merged + 1e-6).all())


def test_unelided_margins_are_upper_minus_lower():
    net, x, labels = net_and_batch()
    region = sb.LinfBall(x, "1/10")
    bounds = sb.interval_bounds(net, region, "none")
    expected = (bounds.upper - bounds.lower.gather(1, labels[:, None])).scatter(1, labels[:, None], 0.0)
    torch.testing.assert_close(sb.worst_margins(net, region, labels, soundness="none", elide=False), expected)


class FixedBatch(nn.Module):
    """Takes batches of 3 only: before its layers, between them, or after."""

    def __init__(self, where: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.where, self.shift = where, nn.Parameter(torch.randn(3, 4))
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "each its own":
            return self.last(F.relu(self.first(x.view(3, 4) + self.shift)))
        if self.where == "before":
            return self.last(F.relu(self.first(x.view(3, 4))))
        h = self.first(x)
        h = F.relu(h.view(3, 6) if self.where == "between" else h)
        return self.last(h).view(3, 3) if self.where == "after" else self.last(h)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_a_network_that_fixes_its_batch_size(where, method):
    net = FixedBatch(where).requires_grad_(False)
    free = nn.Sequential(net.first, nn.ReLU(), net.last)
    region, labels = sb.LinfBall(torch.rand(3, 4), "1/10"), torch.tensor([0, 1, 2])
    found = sb.worst_margins(net, region, labels, method=method)
    torch.testing.assert_close(found, sb.worst_margins(free, region, labels, method=method))


@pytest.mark.parametrize("method", [name for name in METHODS if name != "interval"])
def test_examples_that_a_network_treats_differently_are_refused(method):
    net = FixedBatch("each its own").requires_grad_(False)
    region, labels = sb.LinfBall(torch.rand(3, 4), "1/10"), torch.tensor([0, 1, 2])
    with pytest.raises(BoundError, match="fixes its batch size and treats its examples differently"):
        sb.worst_margins(net, region, labels, method=method)


def test_one_affine_layer_is_exact():
    """With nothing but the last layer the merged bound is the maximum itself, found at corners."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x, labels = torch.rand(1, 4), torch.tensor([2])
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=4))) / 10 + x
    z = net(corners)
    best = (z - z[:, 2:3]).amax(0)
    for mode in MODES:
        torch.testing.assert_close(sb.worst_margins(net, sb.LinfBall(x, "1/10"), labels, soundness=mode)[0], best)


@pytest.mark.parametrize("mode", MODES)
def test_any_linear_specification_shared_or_per_example(mode):
    net, x, labels = net_and_batch()
    region = sb.LinfBall(x, "1/20")
    eye = torch.eye(5)
    own = sb.LinearSpec(eye - eye[labels].unsqueeze(1))
    expected = sb.worst_margins(net, region, labels, soundness=mode)
    torch.testing.assert_close(sb.worst_margins(net, region, spec=own, soundness=mode), expected, atol=1e-5, rtol=1e-5)
    shared = sb.LinearSpec(torch.tensor([[1.0, 2.0, 0.0, -1.0, 0.5]]), torch.tensor([0.25]))
    bound = sb.worst_margins(net, region, spec=shared, soundness=mode)
    for _ in range(100):
        z = net(x + (torch.rand_like(x) * 2 - 1) / 20)
        assert bool((z @ shared.c.T + shared.d <= bound + 1e-6).all())


class Tail(nn.Module):
    """ReLU features, then a chain of affine operators: BatchNorm, convolution, scaling, reshape, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 2, 2, stride=2), nn.BatchNorm2d(2)
        self.last = nn.Linear(8, 4)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        h = self.norm(self.conv(h)) * 1.5 - 0.25
        return self.last(h.flatten(1)) + torch.tensor([0.1, 0.0, -0.1, 0.2])


@pytest.mark.parametrize("mode", MODES)
def test_a_whole_affine_chain_is_merged(mode):
    torch.manual_seed(1)
    net = Tail().eval()
    x, labels = torch.rand(3, 1, 6, 6), torch.tensor([0, 3, 1])
    ops = [node.op for node in affine_tail(program_of(net, x)).calls]
    assert ops[0] == "aten.conv2d.default" and len(ops) >= 6
    region = sb.LinfBall(x, "1/10")
    merged = sb.worst_margins(net, region, labels, soundness=mode)
    # Oracle: the chain as one matrix, found by pushing unit vectors through it.
    inside = sb.interval_bounds(nn.Sequential(net.first, nn.ReLU()), region, "none")

    def tail(h: Tensor) -> Tensor:
        h = net.norm(net.conv(h)) * 1.5 - 0.25
        return net.last(h.flatten(1)) + torch.tensor([0.1, 0.0, -0.1, 0.2])

    features = inside.lower[0].numel()
    constant = tail(torch.zeros(1, *inside.shape[1:]))
    matrix = (tail(torch.eye(features).reshape(features, *inside.shape[1:])) - constant).T
    difference = matrix.unsqueeze(0) - matrix[labels].unsqueeze(1)
    expected = (
        torch.einsum("bkf,bf->bk", difference, inside.center.flatten(1))
        + torch.einsum("bkf,bf->bk", difference.abs(), inside.radius.flatten(1))
        + constant
        - constant[0][labels].unsqueeze(1)
    )
    torch.testing.assert_close(merged, expected, atol=2e-4, rtol=1e-4)


class Pooled(nn.Module):
    """ReLU features, an average of each channel, a linear layer: how residual networks end."""

    def __init__(self, classes: int, pool: nn.Module, features: int) -> None:
        super().__init__()
        self.first, self.norm, self.pool = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), pool
        self.norm.weight.data.copy_(torch.tensor([1.0, -2.0, 0.5]))
        self.last = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pool(self.norm(F.relu(self.first(x)))).flatten(1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("pool", "features"), [(nn.AdaptiveAvgPool2d(1), 3), (nn.AvgPool2d((4, 2)), 24)])
def test_the_bound_is_the_same_on_either_side_of_a_disjoint_average(mode, pool, features):
    """So the tail stops after it: |C A| = |C| |A| where each entry reaches one output only, whatever its sign."""
    torch.manual_seed(2)
    net = Pooled(5, pool, features).eval()
    x, labels = torch.rand(2, 1, 8, 8), torch.tensor([4, 0])
    assert [node.op for node in affine_tail(program_of(net, x)).calls] == ["aten.linear.default"]
    region = sb.LinfBall(x, "1/20")
    inside = sb.interval_bounds(nn.Sequential(net.first, nn.ReLU()), region, "none")

    def tail(h: Tensor) -> Tensor:
        return net.last(net.pool(net.norm(h)).flatten(1))

    constant = tail(torch.zeros(1, *inside.shape[1:]))
    units = torch.eye(3 * 64).reshape(-1, 3, 8, 8)
    matrix = (tail(units) - constant).T  # (K, 192): the tail carried back to the ReLU
    difference = matrix.unsqueeze(0) - matrix[labels].unsqueeze(1)
    expected = (
        torch.einsum("bkf,bf->bk", difference, inside.center.flatten(1))
        + torch.einsum("bkf,bf->bk", difference.abs(), inside.radius.flatten(1))
        + constant
        - constant[0][labels].unsqueeze(1)
    )
    torch.testing.assert_close(sb.worst_margins(net, region, labels, soundness=mode), expected, atol=2e-5, rtol=1e-5)


def test_overlapping_averages_are_merged():
    net = Pooled(5, nn.AvgPool2d(3, 1, 1), 192).eval()
    calls = affine_tail(program_of(net, torch.rand(2, 1, 8, 8))).calls
    assert calls[0].op == "aten.avg_pool2d.default" and len(calls) == 3


class LargestTensor(TorchDispatchMode):
    """Keeps the largest number of entries of any tensor that an operator returns."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for value in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(value, Tensor):
                self.entries = max(self.entries, value.numel())
        return found


def test_memory_does_not_grow_with_classes_times_positions():
    classes, x, labels = 50, torch.rand(3, 1, 16, 16), torch.tensor([0, 49, 7])
    net = Pooled(classes, nn.AdaptiveAvgPool2d(1), 3)
    program = program_of(net, x)
    with LargestTensor() as trained:
        done = training_pass(program, x, labels, 0.1, batch_statistics=True)
        done.computed_margins.sum().backward()
    net.eval()
    with LargestTensor() as sound:
        sb.worst_margins(net, sb.LinfBall(x, "1/10"), labels)
    # Rows of all pairs of classes, or a trial batch of images; nothing of classes x channels x positions.
    assert max(trained.entries, sound.entries) < classes * 3 * x.numel() / 6


def test_the_tail_stops_where_coefficients_of_one_example_do_not_fit(monkeypatch):
    torch.manual_seed(1)
    net, x = Tail().eval(), torch.rand(3, 1, 6, 6)
    labels = torch.tensor([0, 3, 1])
    whole = sb.worst_margins(net, sb.LinfBall(x, "1/10"), labels)
    monkeypatch.setattr("surebound.bounds.elision.BLOCK_ENTRIES", 4 * 8)  # 4 classes, 8 entries after the convolution
    other = Tail().eval()
    other.load_state_dict(net.state_dict())
    ops = [node.op for node in affine_tail(program_of(other, x)).calls]
    assert ops[0] == "aten.linear.default"
    assert bool((sb.worst_margins(other, sb.LinfBall(x, "1/10"), labels) >= whole - 1e-5).all())


def test_deployed_margins_cover_every_order_of_the_last_sum():
    """The margin of two equal rows is 0 over the reals, but two orders of summation differ."""
    n = 33
    net = nn.Linear(n, 2, bias=False)
    net.weight.data.fill_(1.0)
    x = torch.ones(1, n)
    x[0, 0] = 2.0**24
    labels = torch.tensor([0])
    worst = float(_ordered(x[0].flip(0)) - _ordered(x[0]))
    assert worst > 0
    assert sb.worst_margins(net, sb.Box(x, x), labels, soundness="none")[0, 1] <= 0  # claims a proof that is wrong
    assert sb.worst_margins(net, sb.Box(x, x), labels, soundness="deployed")[0, 1] >= worst


def _ordered(terms: Tensor) -> Tensor:
    total = torch.zeros(())
    for term in terms:
        total = total + term
    return total


def test_real_margins_hold_in_exact_arithmetic():
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    x, labels, eps = torch.rand(1, 2), torch.tensor([1]), Fraction(1, 9)
    bound = sb.worst_margins(net, sb.LinfBall(x, eps), labels, soundness="real")[0]
    for signs in itertools.product((-1, 0, 1), repeat=2):
        h = [Fraction(v) + s * eps for v, s in zip(x[0].tolist(), signs, strict=True)]
        for layer in (net[0], net[2]):
            rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
            h = [sum((Fraction(w) * v for w, v in zip(row, h, strict=True)), Fraction(b)) for row, b in rows]
            h = [max(v, Fraction(0)) for v in h] if layer is net[0] else h
        assert all(v - h[1] <= Fraction(b) for v, b in zip(h, bound.tolist(), strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_blocks_give_the_same_margins_and_gradients(mode, monkeypatch):
    net, x, labels = net_and_batch()
    region = sb.LinfBall(x, "1/20")

    def run() -> tuple[Tensor, Tensor]:
        net.zero_grad()
        margins = sb.worst_margins(net, region, labels, soundness=mode)
        margins.sum().backward()
        return margins.detach(), net[5].weight.grad.clone()

    whole = run()
    monkeypatch.setattr(elision, "BLOCK_ENTRIES", 64)
    for a, b in zip(whole, run(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_thousand_classes_without_the_cube():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1000))
    region, labels = sb.LinfBall(torch.rand(2, 8), "1/100"), torch.tensor([3, 999])
    margins = sb.worst_margins(net, region, labels).detach()
    assert margins.shape == (2, 1000) and margins[0, 3] == margins[1, 999] == 0
    with torch.no_grad():
        # The elided layer's rows z_k - z_true over the bounds of the hidden layer, in float64.
        hidden = propagate(program_of(net, region.x), region.interval(), Soundness.DEPLOYED, stop="relu")
        center, radius = (
            (hidden.lower + hidden.upper).double() / 2,
            (hidden.upper - hidden.lower).double() / 2,
        )
        weight, bias = net[2].weight.double(), net[2].bias.double()
        rows, shift = (
            weight - weight[labels].unsqueeze(1),
            bias - bias[labels].unsqueeze(1),
        )  # (B, K, n), (B, K)
        exact = (rows @ center.unsqueeze(2) + rows.abs() @ radius.unsqueeze(2)).squeeze(2) + shift
        assert bool((margins.double() >= exact).all())
        torch.testing.assert_close(margins.double(), exact, rtol=1e-5, atol=2e-4)  # what rounding is paid
        for sign in (-1, 0, 1):
            z = net(region.x + sign / 100)
            assert bool((z - z.gather(1, labels.unsqueeze(1)) <= margins).all())


def test_bad_requests_are_refused():
    net, x, labels = net_and_batch()
    region = sb.LinfBall(x, "1/20")
    with pytest.raises(SpecError, match="give either labels or spec"):
        sb.worst_margins(net, region)
    with pytest.raises(SpecError, match="give either labels or spec"):
        sb.worst_margins(net, region, labels, spec=sb.LinearSpec(torch.zeros(1, 5)))
    with pytest.raises(SpecError, match=r"labels must be in 0..4"):
        sb.worst_margins(net, region, labels + 5)
    with pytest.raises(SpecError, match="flatten the output"):
        sb.worst_margins(nn.Conv2d(3, 1, 1), region, labels)


@pytest.mark.parametrize("traced", [False, True])
def test_an_empty_batch_is_refused_by_every_method(traced):
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).requires_grad_(False)
    if traced:
        program_of(net, torch.zeros(1, 4))
    nothing, labels, spec = torch.zeros(0, 4), torch.zeros(0).long(), sb.LinearSpec(torch.eye(3))
    for region in (sb.LinfBall(nothing, "1/10"), sb.Box(nothing, nothing)):
        for method in METHODS:
            with pytest.raises(RegionError, match="the batch is empty; give at least one example"):
                sb.worst_margins(net, region, labels, method=method)
        with pytest.raises(RegionError, match="the batch is empty"):
            sb.interval_bounds(net, region)
        with pytest.raises(RegionError, match="the batch is empty"):
            sb.linear_bounds(net, region, spec)


class Constant(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[1.0, 0.0]]).expand(len(x), 2)


@pytest.mark.parametrize("method", ["interval", "crown-ibp", "crown", "alpha-crown", "wong"])
def test_networks_that_ignore_their_input(method: str) -> None:
    region, labels = sb.LinfBall(torch.rand(2, 2), "1/10", clip=(0, 1)), torch.tensor([0, 1])
    margins = sb.worst_margins(Constant(), region, labels, method=method)
    torch.testing.assert_close(margins, torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
    found = [r.verdict.status.value for r in sb.verify(Constant(), region, labels).records]
    assert found == ["robust", "falsified"]
