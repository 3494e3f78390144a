"""Linear bounds against exact rational arithmetic and against float32 executions in adversarial orders of summation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear import intermediate
from surebound.bounds.linear.alpha import NamedMultipliers
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.crown import linear_bounds
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.reduced.passes import bounds_of_rows
from surebound.bounds.reduced.reduction import reduce_network
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from tests.bounds.oracles import exact_outputs, layers_of, worst_float32
from tests.bounds.test_linear import tiny_net

METHODS = ("zonotope", "symbolic", "hybrid", "crown-ibp", "crown", "alpha-crown")


def wide_net(terms: int) -> nn.Sequential:
    """One unit that sums 1 and many numbers that vanish beside it, then a ReLU and the identity."""
    net = nn.Sequential(nn.Linear(terms + 1, 1), nn.ReLU(), nn.Linear(1, 1)).requires_grad_(False)
    net[0].weight.fill_(2.0**-25)
    net[0].weight[0, 0] = 1.0
    net[0].bias.zero_()
    net[2].weight.fill_(1.0)
    net[2].bias.zero_()
    return net


def executions(net: nn.Sequential, x: Tensor) -> list[Tensor]:
    """Outputs of the network on one input x (N,) with every layer's sums in the orders that lift or sink them."""
    found = [net(x.unsqueeze(0))[0]]
    for up in (True, False):
        h = x
        for layer in net:
            h = worst_float32(layer.weight, layer.bias, h, up) if isinstance(layer, nn.Linear) else torch.relu(h)
        found.append(h)
    return found


def test_a_bound_without_rounding_is_wrong_and_the_deployed_one_is_not() -> None:
    net, x = wide_net(2048), torch.ones(1, 2049)
    violated = 0
    for sign in (1.0, -1.0):
        spec = sb.LinearSpec(torch.tensor([[sign]]))
        plain = linear_bounds(net, sb.Box(x, x), spec, soundness="none").upper
        deployed = {m: sb.worst_margins(net, sb.Box(x, x), spec=spec, method=m) for m in METHODS}
        worst = max(sign * float(z) for z in executions(net, x[0]))
        violated += worst > float(plain)
        for bound in deployed.values():
            assert float(bound) >= worst
            assert float(bound) < worst + 1e-3
    assert violated  # no order of summation can be the largest and the smallest at once


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(2))
def test_deployed_bounds_hold_of_every_execution_at_corners(seed: int, method: str) -> None:
    """Exact rational outputs and float32 outputs in several orders, where the linear bound is attained."""
    net = tiny_net(seed, (6, 8, 8, 3))
    x = torch.randn(2, 6)
    region, c = sb.LinfBall(x, "1/10"), torch.cat([torch.eye(3), -torch.eye(3)])
    upper = sb.worst_margins(net, region, spec=sb.LinearSpec(c), method=method)
    bounds = linear_bounds(net, region, sb.LinearSpec(c))
    for b in range(2):
        for s in range(6):
            corner = bounds.corner[b, s]
            exact = exact_outputs(layers_of(net), corner)
            value = sum((Fraction(v) * z for v, z in zip(c[s].tolist(), exact, strict=True)), Fraction(0))
            assert Fraction(float(upper[b, s])) >= value
            for z in executions(net, corner):
                assert float(upper[b, s]) >= float(c[s].double() @ z.double())


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("mode", ["real", "deployed"])
def test_any_multipliers_give_a_valid_linear_bound_in_exact_arithmetic(mode: str, wide: bool) -> None:
    """coefficients . x + offset, read with fractions, is above the exact output for random slopes."""
    net, x = tiny_net(5, (4, 6, 6, 2)), torch.randn(1, 4)
    box = sb.LinfBall(x, "1/5").interval()
    root = relax(program_of(net, x), box, Soundness(mode), own=True, wide=wide)
    c, d = torch.eye(2).unsqueeze(0), torch.zeros(1, 2)
    layers, generator = layers_of(net), torch.Generator().manual_seed(0)
    for _ in range(5):
        alphas = {
            k: torch.rand(v.shape, generator=generator) for k, v in NamedMultipliers.start(root, 2).alphas.items()
        }
        form = root.evaluate(c, d, alphas=alphas).form
        for _ in range(5):
            point = x[0] + (torch.rand(4, generator=generator) - 0.5) * 0.4
            exact = exact_outputs(layers, point)
            for s in range(2):
                row = form.coefficients[s, 0].tolist()
                right = sum(
                    (Fraction(a) * Fraction(v) for a, v in zip(row, point.tolist(), strict=True)),
                    Fraction(float(form.offset[s, 0])),
                )
                assert right >= exact[s]


def test_slopes_and_multipliers_outside_their_range_are_clamped() -> None:
    net, x = tiny_net(5, (4, 6, 6, 2)), torch.randn(1, 4)
    root = relax(program_of(net, x), sb.LinfBall(x, 1).interval(), Soundness.DEPLOYED, own=True)
    c, d = torch.eye(2).unsqueeze(0), torch.zeros(1, 2)
    start = NamedMultipliers.start(root, 2).alphas
    ones = {k: torch.ones_like(v) for k, v in start.items()}
    many = {k: torch.full_like(v, 7.0) for k, v in start.items()}
    torch.testing.assert_close(root.evaluate(c, d, alphas=many).upper, root.evaluate(c, d, alphas=ones).upper)
    nothing = {k: torch.full_like(v, torch.nan) for k, v in start.items()}
    assert bool((root.evaluate(c, d, alphas=nothing).upper == torch.inf).all())


def _signs(root: Relaxed, name: str) -> Tensor:
    pre = root.bounds[root.source(name)]
    return ((pre.lower < 0) & (pre.upper > 0)).to(torch.int8)


def test_a_double_specification_is_not_rounded_away() -> None:
    """c and d given in float64 mean those numbers, not their float32 neighbours."""
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)).requires_grad_(False)
    for p in net.parameters():
        p.fill_(1.0)
    x = torch.full((1, 1), 1e6)  # z = x + 2, exactly
    spec = sb.LinearSpec(torch.tensor([[1.0 + 2.0**-40]], dtype=torch.float64), torch.tensor([-1000002.0]).double())
    true = float(Fraction(1000002) * Fraction(2) ** -40)
    for method in ("interval", *METHODS):
        bound = float(sb.worst_margins(net, sb.Box(x, x), spec=spec, method=method, soundness="real"))
        assert bound >= true > 0


def test_float64_networks() -> None:
    net = tiny_net(1, (4, 6, 6, 2))
    wide = nn.Sequential(*(nn.Linear(m.in_features, m.out_features) if isinstance(m, nn.Linear) else m for m in net))
    wide = wide.double().requires_grad_(False)
    wide.load_state_dict({k: v.double() for k, v in net.state_dict().items()})
    x, spec = torch.randn(2, 4), sb.LinearSpec(torch.eye(2))
    for method in ("interval", *METHODS):
        single = sb.worst_margins(net, sb.LinfBall(x, "1/10"), spec=spec, method=method)
        double = sb.worst_margins(
            wide, sb.LinfBall(x.double(), "1/10"), spec=sb.LinearSpec(torch.eye(2).double()), method=method
        )
        assert double.dtype == torch.float64
        torch.testing.assert_close(single.double(), double, atol=1e-4, rtol=1e-4)


def test_a_sum_that_overflows_in_some_order_has_no_bound() -> None:
    """3e38 + 3e38 - 4e38 is infinite or 2e38, depending on the order."""
    net = nn.Sequential(nn.Linear(3, 1), nn.ReLU(), nn.Linear(1, 1)).requires_grad_(False)
    program_of(net, torch.zeros(1, 3))
    net[0].weight.copy_(torch.tensor([[3e38, 3e38, -3.4e38]]))
    net[0].bias.zero_()
    net[2].weight.fill_(1e-30)
    x = torch.ones(1, 3)
    for method in ("interval", *METHODS):
        assert (
            float(sb.worst_margins(net, sb.Box(x, x), spec=sb.LinearSpec(torch.ones(1, 1)), method=method)) == torch.inf
        )


def wide_upper(net: nn.Sequential, box: Interval, c: Tensor, mode: Soundness) -> Tensor:
    """Upper bounds (B, S) of rows c (S, K) by passes with coefficients in float64."""
    root = relax(program_of(net, box.lower), box, mode, own=True, wide=True)
    return root.evaluate(c.expand(len(box.lower), *c.shape), torch.zeros(len(box.lower), len(c))).upper


def test_passes_in_float64_pay_for_the_networks_own_rounding() -> None:
    """A mutant that does not, bounds over the reals, is wrong of some order of summation in float32."""
    net, x = wide_net(2048), torch.ones(1, 2049)
    box, violated = Interval(x, x), 0
    for sign in (1.0, -1.0):
        real, deployed = (
            float(wide_upper(net, box, torch.tensor([[sign]]), mode)) for mode in (Soundness.REAL, Soundness.DEPLOYED)
        )
        worst = max(sign * float(z) for z in executions(net, x[0]))
        exact = sign * (1 + 2048 * 2.0**-25)
        assert exact <= real <= exact + 1e-6
        violated += worst > real
        assert worst <= deployed < worst + 3e-4
    assert violated


@pytest.mark.parametrize("seed", range(3))
def test_passes_in_float64_hold_of_every_execution_of_cancelling_networks(seed: int) -> None:
    """Weights of very different sizes, points and boxes: exact outputs, and float32 outputs in several orders."""
    net = tiny_net(seed, (6, 40, 40, 3))
    g = torch.Generator().manual_seed(seed)
    for layer in net:
        if isinstance(layer, nn.Linear):
            layer.weight.data *= 2.0 ** torch.randint(-8, 8, layer.weight.shape, generator=g)
    c = torch.cat([torch.eye(3), -torch.eye(3)])
    for radius in ("0", "1/1000"):
        x = torch.randn(1, 6, generator=g)
        box = sb.LinfBall(x, radius).interval()
        deployed, real = (wide_upper(net, box, c, mode)[0] for mode in (Soundness.DEPLOYED, Soundness.REAL))
        found = linear_bounds(net, sb.Box(box.lower, box.upper), sb.LinearSpec(c))
        for s in range(6):
            corner = found.corner[0, s]
            exact = exact_outputs(layers_of(net), corner)
            value = sum((Fraction(v) * z for v, z in zip(c[s].tolist(), exact, strict=True)), Fraction(0))
            assert Fraction(float(deployed[s])) >= Fraction(float(real[s])) >= value
            for z in executions(net, corner):
                assert float(deployed[s]) >= float(c[s].double() @ z.double())


def test_what_only_our_own_rounding_forbids_is_proved() -> None:
    """A sum of 4096 ones that cancel: float32 passes pay for more than the network can lose, float64 ones do not."""
    n = 4096
    net = nn.Sequential(nn.Linear(1, n), nn.ReLU(), nn.Linear(n, 1)).requires_grad_(False)
    net[0].weight.zero_()
    net[0].bias.fill_(1.0)
    net[2].weight.copy_(torch.tensor([1.0, -1.0]).repeat(n // 2))
    net[2].bias.fill_(-1.5)  # the network loses at most gamma(4098) 4096 = 1.0006
    x, spec = torch.zeros(1, 1), sb.LinearSpec(torch.ones(1, 1))
    root = relax(program_of(net, x), Interval(x, x), Soundness.DEPLOYED, own=True)
    assert float(root.evaluate(torch.ones(1, 1, 1), torch.zeros(1, 1)).upper) > 0
    for method in ("crown", "alpha-crown"):
        assert float(sb.worst_margins(net, sb.Box(x, x), spec=spec, method=method)) <= 0
        found = linear_bounds(net, sb.Box(x, x), spec, method=method)
        assert float(found.upper) <= 0
        assert found.coefficients.dtype == torch.float64
    closer = float(sb.worst_margins(net, sb.Box(x, x), spec=spec, method="crown", soundness="real"))
    assert -1.5 <= closer < -1.49
    reduced = reduce_network(program_of(net, x), Interval(x, x), torch.ones(1, 1), Soundness.DEPLOYED)
    assert float(bounds_of_rows(reduced).upper) <= 0


@pytest.mark.parametrize(("bias", "again"), [(4.0, False), (-1.5, True)])
def test_no_arithmetic_is_tried_where_the_network_itself_forbids_a_proof(
    monkeypatch: pytest.MonkeyPatch, bias: float, again: bool
) -> None:
    """A row that is positive at the centre stays open in any arithmetic: one relaxation, the bound as it was."""
    n = 4096
    net = nn.Sequential(nn.Linear(1, n), nn.ReLU(), nn.Linear(n, 1)).requires_grad_(False)
    net[0].weight.zero_()
    net[0].bias.fill_(1.0)
    net[2].weight.copy_(torch.tensor([1.0, -1.0]).repeat(n // 2))
    net[2].bias.fill_(bias)
    x, spec = torch.zeros(1, 1), sb.LinearSpec(torch.ones(1, 1))
    plain = []

    def counted(*args: Any, **kwargs: Any) -> Relaxed:
        plain.append(args[2] is Soundness.NONE)
        return relax(*args, **kwargs)

    monkeypatch.setattr(intermediate, "relax", counted)
    found = linear_bounds(net, sb.Box(x, x), spec)
    assert plain == ([True] if again else [])
    assert found.coefficients.dtype == (torch.float64 if again else torch.float32)
    assert float(found.upper) >= bias
    monkeypatch.setattr(intermediate, "_reached", lambda program, box, c, d: torch.full(d.shape, -torch.inf))
    assert torch.equal(found.upper, linear_bounds(net, sb.Box(x, x), spec).upper)
    assert any(plain)
