"""Interval bounds of whole networks: samples, exact corners, gradients, other orders of summation."""

from __future__ import annotations

import gc
import itertools
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds import propagate
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules.owned import Deferred

MODES = ("none", "real", "deployed")


def small_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(27, 5),
        nn.ReLU(),
        nn.Linear(5, 4),
    )
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    return net.eval()


def exact_mlp(layers: list[tuple[Tensor, Tensor]], x: list[Fraction]) -> list[Fraction]:
    """A ReLU network in rational arithmetic."""
    for i, (weight, bias) in enumerate(layers):
        x = [
            sum((Fraction(w) * v for w, v in zip(row, x, strict=True)), Fraction(b))
            for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
        ]
        if i + 1 < len(layers):
            x = [max(v, Fraction(0)) for v in x]
    return x


@pytest.mark.parametrize("mode", MODES)
def test_samples_and_gradient_attacks_stay_inside(mode):
    net = small_net()
    x = torch.rand(4, 1, 8, 8)
    bounds = sb.interval_bounds(net, sb.LinfBall(x, "1/20", clip=(0, 1)), mode)
    generator = torch.Generator().manual_seed(0)
    slack = 1e-5 if mode == "none" else 0.0
    for attempt in range(60):
        point = (x + (torch.rand(x.shape, generator=generator) * 2 - 1) / 20).clamp(0, 1)
        if attempt % 2:  # push one output to its extreme
            point.requires_grad_(True)
            output = net(point)[:, attempt % 4].sum()
            point = (x + torch.autograd.grad(output, point)[0].sign() / 20).clamp(0, 1)
        z = net(point.detach())
        assert bool((z >= bounds.lower - slack).all() and (z <= bounds.upper + slack).all())


@pytest.mark.parametrize("mode", ["real", "deployed"])
def test_exact_rational_evaluation_at_every_corner(mode):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    layers = [(layer.weight.detach(), layer.bias.detach()) for layer in net if isinstance(layer, nn.Linear)]
    x, eps = torch.rand(1, 3), Fraction(1, 7)
    bounds = sb.interval_bounds(net, sb.LinfBall(x, eps), mode)
    lower, upper = ([Fraction(v) for v in end[0].tolist()] for end in (bounds.lower, bounds.upper))
    for signs in itertools.product((-1, 0, 1), repeat=3):
        point = [Fraction(v) + s * eps for v, s in zip(x[0].tolist(), signs, strict=True)]
        z = exact_mlp(layers, point)
        assert all(lo <= v <= up for lo, v, up in zip(lower, z, upper, strict=True))


def test_modes_nest_and_cost_little_width():
    net, x = small_net(), torch.rand(3, 1, 8, 8)
    none, real, deployed = (sb.interval_bounds(net, sb.LinfBall(x, "1/20"), mode) for mode in MODES)
    assert bool((deployed.upper >= real.upper).all() and (real.upper >= none.upper).all())
    assert bool((deployed.lower <= real.lower).all() and (real.lower <= none.lower).all())
    assert bool((deployed.upper - none.upper <= 1e-3 * (none.upper - none.lower)).all())


@pytest.mark.parametrize("mode", MODES)
def test_a_larger_region_has_larger_bounds(mode):
    net, x = small_net(), torch.rand(3, 1, 8, 8)
    inner = sb.interval_bounds(net, sb.LinfBall(x, "1/50"), mode)
    outer = sb.interval_bounds(net, sb.LinfBall(x, "1/20"), mode)
    assert bool((outer.lower <= inner.lower).all() and (inner.upper <= outer.upper).all())


def test_radius_zero_is_the_network_itself():
    net, x = small_net(), torch.rand(3, 1, 8, 8)
    bounds = sb.interval_bounds(net, sb.LinfBall(x, 0), "none")
    torch.testing.assert_close(bounds.lower, net(x))
    torch.testing.assert_close(bounds.upper, net(x))
    deployed = sb.interval_bounds(net, sb.LinfBall(x, 0))
    assert bool(deployed.contains(net(x)).all())


def test_batch_is_stacked_singles():
    net, x = small_net(), torch.rand(5, 1, 8, 8)
    whole = sb.interval_bounds(net, sb.LinfBall(x, "1/20"), "none")
    for i in range(5):
        single = sb.interval_bounds(net, sb.LinfBall(x[i : i + 1], "1/20"), "none")
        torch.testing.assert_close(whole.upper[i : i + 1], single.upper)


def test_gradcheck_into_the_parameters():
    net = small_net().double()
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    region = sb.LinfBall(x, "1/20")
    program_of(net, x)  # traced with its own parameters; functional_call below only swaps their values

    def loss(*parameters: Tensor) -> Tensor:
        own = dict(zip((name for name, _ in net.named_parameters()), parameters, strict=True))
        return torch.func.functional_call(_Bounds(net, region), {f"net.{k}": v for k, v in own.items()}, ())

    class _Bounds(nn.Module):
        def __init__(self, inner: nn.Module, region: sb.LinfBall) -> None:
            super().__init__()
            self.net, self.region = inner, region

        def forward(self) -> Tensor:
            bounds = sb.interval_bounds(self.net, self.region, "none")
            return torch.cat([bounds.lower, bounds.upper])

    parameters = tuple(p.detach().clone().requires_grad_() for p in net.parameters())
    assert torch.autograd.gradcheck(loss, parameters, fast_mode=True)


def _sum_in_order(terms: Tensor) -> Tensor:
    total = torch.zeros(())
    for term in terms:
        total = total + term
    return total


def test_deployed_holds_where_plain_float32_is_wrong_for_another_order_of_summation():
    """2^24, then ones: left to right every one is lost, in another order none is."""
    n = 65
    net = nn.Linear(n, 1, bias=False)
    net.weight.data.fill_(1.0)
    x = torch.ones(1, n)
    x[0, 0] = 2.0**24
    region = sb.Box(x, x)
    ones_first, ones_last = _sum_in_order(x[0].flip(0)), _sum_in_order(x[0])
    assert ones_first > ones_last  # two float32 executions of one network disagree
    plain = sb.interval_bounds(net, region, "none")
    contained = [bool(plain.lower <= v) and bool(v <= plain.upper) for v in (ones_first, ones_last)]
    assert not all(contained)
    deployed = sb.interval_bounds(net, region, "deployed")
    assert all(bool(deployed.lower <= v) and bool(v <= deployed.upper) for v in (ones_first, ones_last))


def test_infinite_and_nan_bounds_never_look_proved():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    box = sb.Box(torch.full((1, 2), -torch.inf), torch.full((1, 2), torch.inf))
    bounds = sb.interval_bounds(net, box)
    assert bool((bounds.lower == -torch.inf).all() or (bounds.lower <= net[2].bias).all())
    assert bool((bounds.upper == torch.inf).all())
    net[0].weight.data[0, 0] = float("nan")
    margins = sb.worst_margins(net, sb.LinfBall(torch.zeros(1, 2), "1/10"), torch.tensor([0]))
    assert margins[0, 1] == torch.inf and margins[0, 0] == 0


def test_values_are_dropped_when_read_for_the_last_time():
    depth, live = 12, []
    net = nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(4, 4), nn.ReLU())))
    program = program_of(net, torch.zeros(1, 4))

    def observe(_node: object, _value: object) -> None:
        gc.collect()
        live.append(sum(type(o) is Interval for o in gc.get_objects()))

    gc.freeze()  # whatever else the tests have made need not be looked through at every call
    try:
        with torch.no_grad():
            propagate(program, sb.LinfBall(torch.zeros(1, 4), 1).interval(), Soundness.NONE, observe=observe)
    finally:
        gc.unfreeze()
    assert len(live) > depth and live[-1] > 0
    assert max(live) - live[0] <= 1


@pytest.mark.parametrize("mode", ["none", "deployed"])
def test_relus_wait_for_the_product_that_follows(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for their ends in between makes six passes over the activations of one."""
    asked: list[Interval] = []
    apply = Deferred._apply
    monkeypatch.setattr(Deferred, "_apply", lambda self, fn: asked.append(self) or apply(self, fn))
    net, x = small_net().requires_grad_(False), torch.rand(2, 1, 8, 8)
    found = sb.interval_bounds(net, sb.LinfBall(x, "1/10"), mode)
    assert bool((found.lower <= found.upper).all())
    assert not asked
