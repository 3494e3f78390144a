"""Linear bounds of whole networks against linear programs, enumeration of patterns, samples and rewritten twins."""

from __future__ import annotations

import copy
import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from benchmarks.common import peak_bytes
from surebound.bounds.elision import affine_tail, merged_margins
from surebound.bounds.forward.hybrid import Hybrid
from surebound.bounds.linear.alpha import Adam, NamedMultipliers, optimise
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.crown import Crown, linear_bounds
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.linear.narrowing import narrowed
from surebound.bounds.margins import METHODS as NAMED
from surebound.errors import InputError, RegionError
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from tests.bounds.oracles import (
    exact_maximum,
    layers_of,
    lp_maximum,
    pattern_maximum,
    sampled_maximum,
)

MODES = ("none", "real", "deployed")
METHODS = ("crown-ibp", "crown", "alpha-crown")


@functools.cache  # tracing costs more than everything else here
def tiny_net(seed: int, sizes: tuple[int, ...] = (3, 4, 3, 3)) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        parts += [nn.Linear(a, b), nn.ReLU()]
    net = nn.Sequential(*parts[:-1])
    for p in net.parameters():
        p.data *= 2 if p.dim() > 1 else 0.5  # small biases: most ReLUs are unstable
        p.requires_grad_(False)
    return net


def with_signs(relaxed: Relaxed, signs: dict[str, Tensor]) -> Relaxed:
    """Restrict boxes to the executions whose ReLU inputs have the given signs, -1, 0 (any) or 1, by activation."""
    parts = {}
    for name, sign in signs.items():
        like = relaxed.bounds[relaxed.source(name)].lower
        ends = torch.where(sign > 0, 0.0, -torch.inf), torch.where(sign < 0, 0.0, torch.inf)
        parts[relaxed.source(name)] = Interval(*(end.to(like) for end in ends))
    return narrowed(relaxed, parts)


def spec_rows(outputs: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([torch.eye(outputs), -torch.eye(outputs), torch.randn(2, outputs, generator=generator)])


@functools.cache
def truth(seed: int) -> tuple[Tensor, Tensor, list[float], Tensor]:
    """An input, rows c, the exact maxima of c.z within 1/2 of it, and the largest sampled ones."""
    net, generator = tiny_net(seed), torch.Generator().manual_seed(seed)
    x, c = torch.randn(1, 3, generator=generator), spec_rows(3, seed)[2:7]
    low, high = (v[0].double().numpy() for v in (x - 0.5, x + 0.5))
    exact = [exact_maximum(layers_of(net), low, high, row) for row in c.double().numpy()]
    return x, c, exact, sampled_maximum(net, x[0] - 0.5, x[0] + 0.5, c)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_crown_lp_exact_and_samples_are_in_order(seed: int, mode: str) -> None:
    """interval >= CROWN >= alpha-CROWN >= LP >= exact maximum >= samples, with CROWN's own intermediate bounds."""
    net, (x, c, exact, samples) = tiny_net(seed), truth(seed)
    region, spec = sb.LinfBall(x, "1/2"), sb.LinearSpec(c)
    methods = ("interval", *METHODS)
    found = {m: sb.worst_margins(net, region, spec=spec, method=m, soundness=mode)[0] for m in methods}
    # Linear methods start from interval bounds of their own: the same ones, but for the order in which a library sums.
    within = found["interval"] + 2.0**-21 * found["interval"].abs()
    for linear in (
        "crown-ibp",
        "crown",
    ):  # tighter bounds inside may choose other slopes: these have no order
        assert bool((found[linear] <= within).all())
    assert bool((found["alpha-crown"] <= found["crown"]).all())

    soundness, program = Soundness(mode), program_of(net, x)
    start = relax(program, region.interval(soundness), soundness, own=False)
    own = merged_margins(start, affine_tail(program), *spec.rows(1, 3))[0]
    assert bool((found["crown-ibp"] <= own).all())
    relaxed = relax(program, region.interval(soundness), soundness, own=True)
    pre = [relaxed.bounds[relaxed.source(name)] for name in relaxed.activations]
    bounds = [(b.lower[0].double().numpy(), b.upper[0].double().numpy()) for b in pre]
    low, high = (v[0].double().numpy() for v in (x - 0.5, x + 0.5))
    for row, coefficients in enumerate(c.double().numpy()):
        lp = lp_maximum(layers_of(net), low, high, bounds, coefficients)
        slack = 1e-5 if mode == "none" else 1e-6  # the solver's own tolerance
        assert float(found["alpha-crown"][row]) >= lp - slack
        assert lp >= exact[row] - 1e-6
        assert exact[row] >= float(samples[row]) - 1e-6


@pytest.mark.parametrize("mode", ["real", "deployed"])
@pytest.mark.parametrize("method", ["zonotope", "symbolic", "hybrid", Hybrid("box"), Hybrid("diag", 2)], ids=str)
def test_forward_domains_are_between_the_truth_and_intervals(method: str | Hybrid, mode: str) -> None:
    gain = 0.0
    for seed in range(3):
        x, c, exact, _ = truth(seed)
        region, spec = sb.LinfBall(x, "1/2"), sb.LinearSpec(c)
        found, interval = (
            sb.worst_margins(tiny_net(seed), region, spec=spec, method=m, soundness=mode)[0]
            for m in (method, "interval")
        )
        assert bool((found.double() >= torch.tensor(exact) - 1e-6).all())
        assert bool((found <= interval).all())
        gain += float((interval - found).mean())
    assert gain > 0.05 or not isinstance(method, str)


def test_forward_domains_refuse_to_ignore_rounding() -> None:
    for method in ("zonotope", "symbolic", "hybrid"):
        with pytest.raises(InputError, match="give soundness='real' or 'deployed'"):
            sb.worst_margins(
                tiny_net(0),
                sb.LinfBall(torch.zeros(1, 3), 1),
                torch.tensor([0]),
                method=method,
                soundness="none",
            )


def test_alpha_comes_close_to_the_linear_program() -> None:
    """With one hidden layer optimal slopes reach the triangle relaxation exactly."""
    net = tiny_net(3, (4, 12, 2))
    x = torch.randn(1, 4)
    region, c = sb.LinfBall(x, "1/2"), spec_rows(2)
    method = Crown(adam=Adam(steps=300, decay=0.99))
    bound = sb.worst_margins(net, region, spec=sb.LinearSpec(c), method=method, soundness="real")[0]
    relaxed = relax(program_of(net, x), region.interval(Soundness.REAL), Soundness.REAL, own=True)
    pre = relaxed.bounds[relaxed.source(relaxed.activations[0])]
    bounds = [(pre.lower[0].detach().double().numpy(), pre.upper[0].detach().double().numpy())]
    for row, coefficients in enumerate(c.double().numpy()):
        low, high = (v[0].double().numpy() for v in (x - 0.5, x + 0.5))
        lp = lp_maximum(layers_of(net), low, high, bounds, coefficients)
        assert lp - 1e-6 <= float(bound[row]) <= lp + 1e-3 * (1 + abs(lp))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slopes", ["adaptive", "zero", "one", "upper"])
def test_every_slope_is_sound_and_alpha_is_never_looser_than_its_start(slopes: str, mode: str) -> None:
    net, x = tiny_net(7, (5, 8, 8, 3)), torch.randn(4, 5)
    region, spec = sb.LinfBall(x, "3/10"), sb.LinearSpec(spec_rows(3))
    start = linear_bounds(net, region, spec, method=Crown(slopes=slopes), soundness=mode)  # type: ignore[arg-type]
    best = linear_bounds(
        net,
        region,
        spec,
        method=Crown(slopes=slopes, adam=Adam(steps=8)),
        soundness=mode,  # type: ignore[arg-type]
    )
    assert bool((best.upper <= start.upper + (1e-6 if mode == "none" else 0)).all())
    assert float((start.upper - best.upper).max()) > 0.01
    for b in range(4):
        samples = sampled_maximum(net, x[b] - 0.3, x[b] + 0.3, spec.c)
        assert bool((best.upper[b].double() >= samples - 1e-5).all())


def test_linear_bounds_hold_at_every_input() -> None:
    net, x = tiny_net(1, (6, 10, 10, 4)), torch.randn(3, 6)
    bounds = sb.linear_bounds(net, sb.LinfBall(x, "1/4"), sb.LinearSpec(spec_rows(4)))
    assert bounds.coefficients.shape == (3, 10, 6)
    for _ in range(50):
        point = x + (torch.rand_like(x) - 0.5) / 2
        with torch.no_grad():
            left = net(point).double() @ spec_rows(4).double().t()
        right = (bounds.coefficients.double() * point.double().unsqueeze(1)).sum(2) + bounds.offset
        assert bool((left <= right).all())
    at_corner = (bounds.coefficients.double() * bounds.corner.double()).sum(2) + bounds.offset
    torch.testing.assert_close(at_corner, bounds.upper.double(), atol=1e-5, rtol=1e-5)
    assert bool(bounds.box.contains(bounds.corner.transpose(0, 1)).all())


class Chain(nn.Module):
    """A residual network, and the same function written with other operators and more branches."""

    def __init__(self, twin: bool) -> None:
        super().__init__()
        self.twin = twin
        self.one, self.two, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.one(x))
        if not self.twin:
            return self.last(h + torch.relu(self.two(h)))  # type: ignore[no-any-return]
        left, right = self.two(h).split(4, dim=1)
        joined = torch.cat([torch.relu(left), torch.clamp(right, min=0)], dim=1)
        both = torch.stack([joined, h], dim=1).sum(1)
        return self.last(both.reshape(-1, 2, 4).flatten(1) * 2 - both)  # type: ignore[no-any-return]


@functools.cache
def twins() -> tuple[Chain, Chain]:
    torch.manual_seed(0)
    plain, twin = Chain(False).requires_grad_(False), Chain(True).requires_grad_(False)
    twin.load_state_dict(plain.state_dict())
    return plain, twin


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", METHODS)
def test_a_residual_net_and_its_rewritten_twin_have_the_same_bounds(method: str, mode: str) -> None:
    plain, twin = twins()
    x = torch.randn(3, 5)
    spec, region = sb.LinearSpec(spec_rows(3)), sb.LinfBall(x, "1/5")
    crown = NAMED[method]
    assert isinstance(crown, Crown)
    # Not intersected with intervals, which do see how the function is written.
    one, two = (linear_bounds(net, region, spec, method=crown, soundness=mode).upper for net in (plain, twin))
    torch.testing.assert_close(one, two, atol=2e-5, rtol=2e-5)
    for b in range(3):
        samples = sampled_maximum(plain, x[b] - 0.2, x[b] + 0.2, spec.c)
        assert bool((one[b].double() >= samples - 1e-6).all())
    assert bool((one < sb.worst_margins(plain, region, spec=spec, soundness=mode)).any())


class Zoo(nn.Module):
    """Convolutions, BatchNorm, pooling, products, quotients, smooth functions and skips in one network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Linear(16, 3)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv(x)))
        h = torch.tanh(self.second(h)) * torch.sigmoid(h) + h
        h = nn.functional.max_pool2d(nn.functional.leaky_relu(h, 0.1), 2)
        h = h / (1 + h.square()).sqrt() - nn.functional.gelu(h)
        return self.last(torch.maximum(h, -h).flatten(1))  # type: ignore[no-any-return]


@functools.cache
def zoo() -> Zoo:
    torch.manual_seed(0)
    return Zoo().eval().requires_grad_(False)


@pytest.mark.parametrize("method", ["zonotope", "symbolic", "hybrid", *METHODS])
def test_a_network_of_many_operators(method: str) -> None:
    net, x = zoo(), torch.rand(2, 2, 8, 8)
    spec, region = sb.LinearSpec(spec_rows(3)), sb.LinfBall(x, "1/50")
    found = sb.worst_margins(net, region, spec=spec, method=method)
    interval = sb.worst_margins(net, region, spec=spec)
    assert bool((found <= interval).all())
    assert float((interval - found).mean()) > (0.02 if "crown" in method else 0.002)
    noise = (torch.rand(400, *x.shape) * 2 - 1) / 50
    noise[:200] = noise[:200].sign() / 50
    with torch.no_grad():
        z = torch.stack([net(x + n) for n in noise])  # (N, B, K)
    samples = torch.einsum("nbk,sk->bsn", z.double(), spec.c.double()).amax(2)
    assert bool((found.double() >= samples).all())


class Sign(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sign(x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("last", [nn.Softmax(1), Sign()], ids=["softmax", "sign"])
def test_slopes_behind_an_operator_without_lines_are_left_alone(last: nn.Module, mode: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), last).requires_grad_(False)
    region, labels = sb.LinfBall(torch.rand(2, 4), "1/10"), torch.tensor([0, 1])
    found = sb.worst_margins(net, region, labels, method="alpha-crown", soundness=mode)
    # An operator that gets lines one day may only make it tighter.
    assert bool((found <= sb.worst_margins(net, region, labels, method="crown", soundness=mode)).all())
    z = net(region.x)
    assert bool((z - z.gather(1, labels[:, None]) <= found + 1e-6).all())


@pytest.mark.parametrize("mode", ["real", "deployed"])
def test_splits_cover_the_box_and_full_patterns_are_exact(mode: str) -> None:
    """Every pattern's bound is at least its true maximum, and with optimised multipliers comes close."""
    net, x = tiny_net(2, (2, 3, 2, 2)), torch.tensor([[0.1, -0.1]])
    soundness, c = Soundness(mode), torch.tensor([[[1.0, -1.0]]])
    region = sb.LinfBall(x, "1/2")
    root = relax(program_of(net, x), region.interval(soundness), soundness, own=True)
    assert [root.bounds[n].shape[1] for n in root.activations] == [3, 2]
    patterns = [tuple(float(b) for b in f"{i:05b}") for i in range(32)]
    signs = torch.tensor(patterns).mul(2).sub(1).to(torch.int8)  # (32, 5)
    node = with_signs(
        root.select(torch.zeros(32, dtype=torch.long)),
        {root.activations[0]: signs[:, :3], root.activations[1]: signs[:, 3:]},
    )
    rows, d = c.expand(32, 1, 2), torch.full((32, 1), 5.0)  # far from proved, so that nothing stops early
    upper, multipliers = optimise(node, rows, d, Adam(steps=200, beta_rate=0.3, decay=0.99))
    upper = upper - 5
    low, high = (v[0].double().numpy() for v in (x - 0.5, x + 0.5))
    true = [pattern_maximum(layers_of(net), low, high, np.array([1.0, -1.0]), p) for p in patterns]
    feasible = [i for i, t in enumerate(true) if t > -np.inf]
    assert 1 < len(feasible) < 32
    for i, t in enumerate(true):
        assert float(upper[i, 0]) >= t - 1e-6
    gaps = [float(upper[i, 0]) - true[i] for i in feasible]
    assert max(gaps) < 0.02, gaps
    exact = exact_maximum(layers_of(net), low, high, np.array([1.0, -1.0]))
    assert exact - 1e-6 <= float(upper[feasible].max()) <= exact + 0.02
    # Without the multipliers the split constraints are only used through the bounds: looser.
    plain = node.evaluate(rows, d).upper - 5
    assert bool((upper <= plain + 1e-5).all())
    assert float((plain - upper)[feasible].max()) > 0.05
    assert set(multipliers.betas) == {root.source(name) for name in root.activations}


def test_contradictory_splits_prove_anything() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    net[0].weight.data.fill_(1.0)
    net[0].bias.data.fill_(2.0)
    box = Interval(-torch.ones(1, 1), torch.ones(1, 1))
    root = relax(program_of(net, torch.zeros(1, 1)), box, Soundness.DEPLOYED, own=True)
    impossible = with_signs(root, {root.activations[0]: torch.tensor([[-1]])})
    possible = with_signs(root, {root.activations[0]: torch.tensor([[1]])})
    assert impossible.infeasible is not None and impossible.infeasible.tolist() == [True]
    c, d = torch.ones(1, 1, 1), torch.zeros(1, 1)
    assert impossible.evaluate(c, d).upper.item() == -np.inf
    assert possible.evaluate(c, d).upper.item() > -np.inf


def test_gradients_of_slopes_and_multipliers_are_those_of_the_bound() -> None:
    net = copy.deepcopy(tiny_net(4, (3, 5, 5, 2))).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    root = relax(program_of(net, x), sb.LinfBall(x, "1/2").interval(Soundness.NONE), Soundness.NONE, own=True)
    pre = root.bounds[root.source(root.activations[0])]
    unstable = (pre.lower < 0) & (pre.upper > 0)
    assert int(unstable.sum()) >= 4
    signs = torch.tensor([1, 0, -1, 1, 0], dtype=torch.int8) * unstable
    node = with_signs(root, {root.activations[0]: signs})
    start = NamedMultipliers.start(node, 2)
    c, d = torch.eye(2, dtype=torch.float64).expand(2, 2, 2), torch.zeros(2, 2, dtype=torch.float64)

    def bound(*values: Tensor) -> Tensor:
        names = list(start.alphas)
        alphas, betas = dict(zip(names, values[:2], strict=True)), {root.source(names[0]): values[2]}
        return node.upper(node.pull(*node.query(c, d), alphas=alphas, betas=betas))

    values = [torch.rand_like(a).mul_(0.8).add_(0.1).requires_grad_() for a in start.alphas.values()]
    values.append(torch.rand_like(values[0]).requires_grad_())
    assert torch.autograd.gradcheck(bound, values, atol=1e-6)


def test_recorded_coefficients_and_corners() -> None:
    net, x = tiny_net(5, (3, 4, 4, 2)), torch.randn(2, 3)
    root = relax(program_of(net, x), sb.LinfBall(x, "1/2").interval(), Soundness.DEPLOYED, own=True)
    c, d = torch.eye(2).expand(2, 2, 2), torch.zeros(2, 2)
    result = root.evaluate(c, d, record=(*root.activations, root.source(root.activations[0])))
    last = net[4].weight.detach()
    torch.testing.assert_close(result.form.recorded[root.activations[1]][:, 0], last)
    assert result.form.recorded[root.source(root.activations[0])].shape == (2, 2, 4)
    corner = root.corner(result.form)
    assert corner.shape == (2, 2, 3)
    value = (result.form.coefficients.double() * corner.double()).sum(2) + result.form.offset
    torch.testing.assert_close(value.t(), result.upper.double(), atol=1e-5, rtol=1e-5)


@functools.cache
def conv_net(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(1, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(16 * width, 4)).requires_grad_(False)


@pytest.mark.parametrize("method", METHODS)
def test_a_low_memory_ceiling_gives_the_same_bounds(method: str) -> None:
    net = conv_net(4)
    x, labels = torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0])
    region = sb.LinfBall(x, "1/20", clip=(0, 1))
    free = NAMED[method]
    assert isinstance(free, Crown)
    low = replace(free, memory=20_000)  # one backward row of this network takes more than 3 kB
    wide, narrow = (sb.worst_margins(net, region, labels, method=m) for m in (free, low))
    torch.testing.assert_close(wide, narrow, atol=1e-6, rtol=1e-6)


def test_memory_keeps_to_its_ceiling() -> None:
    net = conv_net(16)
    x, labels = torch.rand(8, 1, 8, 8), torch.arange(8) % 4
    region = sb.LinfBall(x, "1/20", clip=(0, 1))
    wide, narrow = (
        peak_bytes(lambda m=m: sb.worst_margins(net, region, labels, method=Crown(memory=m)))
        for m in (1 << 26, 1 << 20)
    )
    assert narrow < 3 * (1 << 20) < wide


def test_infinite_and_nan_never_prove() -> None:
    net, x = copy.deepcopy(tiny_net(0)), torch.zeros(2, 3)
    program_of(net, x)
    net[0].weight.data[0, 0] = torch.nan
    spec = sb.LinearSpec(spec_rows(3))
    for method in ("interval", *METHODS):
        assert bool((sb.worst_margins(net, sb.LinfBall(x, 1), spec=spec, method=method) == torch.inf).all())
    wide = sb.Box(torch.full((1, 3), -torch.inf), torch.full((1, 3), torch.inf))
    for method in METHODS:
        assert bool((sb.worst_margins(tiny_net(0), wide, spec=spec, method=method) > 1e30).all())


def test_linear_bounds_know_the_methods_by_name() -> None:
    net, region, spec = tiny_net(0), sb.LinfBall(torch.zeros(2, 3), "1/4"), sb.LinearSpec(spec_rows(3))
    for name in ("crown-ibp", "crown", "wong", "alpha-crown"):
        found = linear_bounds(net, region, spec, method=name)
        assert torch.equal(found.upper, linear_bounds(net, region, spec, method=NAMED[name]).upper)  # type: ignore[arg-type]


def test_bad_input_is_refused() -> None:
    net, x = tiny_net(0), torch.zeros(2, 3)
    labels = torch.tensor([0, 1])
    with pytest.raises(InputError, match=r"method='corwn' is not known; did you mean 'crown'"):
        sb.worst_margins(net, sb.LinfBall(x, 1), labels, method="corwn")
    with pytest.raises(InputError, match="give 'interval' or 'own'"):
        Crown(intermediate="mine")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="give 'adaptive', 'zero', 'one' or 'upper'"):
        Crown(slopes="steep")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="positive number of bytes"):
        Crown(memory=0)
    with pytest.raises(InputError, match="rates > 0"):
        Adam(alpha_rate=0)
    for bounds in (sb.interval_bounds, sb.worst_margins, functools.partial(linear_bounds, spec=labels)):
        with pytest.raises(RegionError, match=r"the region is a Tensor; give sb.LinfBall.*or sb.Box"):
            bounds(net, x)  # type: ignore[operator]
    with pytest.raises(InputError, match="method='interval' gives no linear functions; give one of crown-ibp, "):
        linear_bounds(net, sb.LinfBall(x, 1), sb.LinearSpec(spec_rows(3)), method="interval")
    with pytest.raises(InputError, match="labels or spec"):
        sb.worst_margins(net, sb.LinfBall(x, 1), method="crown")
    root = relax(program_of(net, x), sb.LinfBall(x, 1).interval(), Soundness.DEPLOYED, own=False)
    with pytest.raises(InputError, match="'nothing' is no value inside the network; these are: linear, relu"):
        narrowed(root, {"nothing": Interval.point(torch.zeros(2, 4))})
    with pytest.raises(InputError, match=r"part of linear has shape \(1, 4\); give \(2, 4\)"):
        narrowed(root, {"linear": Interval.point(torch.zeros(1, 4))})
