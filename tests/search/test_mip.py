"""The encoding is exact: against every activation pattern, against samples, operator by operator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.margins import worst_margins
from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import SOLVER_FEASIBILITY, Soundness
from surebound.region import Box, LinfBall
from surebound.rules.mip.expression import Encoder, Expression
from surebound.rules.mip.maximum import encode_maximum
from surebound.rules.mip.pieces import encode_pieces
from surebound.rules.windows import pool_windows
from surebound.search.mip import Encoding, NetworkEncoder, tightest_bounds
from surebound.solvers import Limits, SolverStatus
from surebound.solvers.highs import solve
from tests.verify.oracle import exact_maximum, tiny_net

LIMITS = Limits(SOLVER_FEASIBILITY, seconds=30.0)
MARGIN = np.array([-1.0, 1.0, 0.0])


def encode(net: nn.Module, region: Box | LinfBall, crown: bool = False) -> Encoding:
    program = program_of(net, region.reference)
    bounds = tightest_bounds(program, region.interval(), crown=crown)
    return NetworkEncoder(program).encode(bounds)


def maximum(encoding: Encoding, c: np.ndarray, d: float = 0.0) -> float:
    outcome = solve(encoding.problem(c, d), LIMITS)
    assert outcome.status is SolverStatus.OPTIMAL
    assert outcome.objective == pytest.approx(outcome.dual_bound, abs=1e-5)
    return outcome.objective


def samples(region: Box | LinfBall, count: int = 20000) -> torch.Tensor:
    box = region.interval(Soundness.NONE)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(count, *box.shape[1:], generator=generator)
    x[: count // 4] = (x[: count // 4] > 0.5).float()  # corners
    return box.lower + x * (box.upper - box.lower)


@pytest.mark.parametrize("crown", [False, True])
def test_mip_is_the_best_of_all_activation_patterns(crown: bool) -> None:
    net = tiny_net([2, 3, 3, 3], 0)
    for seed in range(4):
        net.load_state_dict(tiny_net([2, 3, 3, 3], seed, scale=2.0).state_dict())  # one trace for all
        region = LinfBall(torch.rand(1, 2, generator=torch.Generator().manual_seed(seed)), "2/5")
        encoding = encode(net, region, crown)
        box = region.interval()
        truth = exact_maximum(net, box.lower[0], box.upper[0], MARGIN, 0.25)
        assert maximum(encoding, MARGIN, 0.25) == pytest.approx(truth, abs=1e-5)
        found = float((net(samples(region)) @ torch.tensor(MARGIN).float()).max()) + 0.25
        assert found <= truth + 1e-5
        assert found >= truth - 0.1 * max(1.0, abs(truth))  # 20000 points in two dimensions come close
        relaxed = solve(encoding.problem(MARGIN, 0.25).relaxed(), LIMITS)
        crown_bound = worst_margins(net, region, torch.tensor([0]), method="crown")[0, 1] + 0.25
        assert truth - 1e-6 <= relaxed.dual_bound <= float(crown_bound) + 1e-5


def test_the_relaxation_is_the_triangle() -> None:
    """One unstable ReLU on [-1, 2]: the relaxed maximum of y - x/2 is at Ehlers' chord, 2(x+1)/3."""
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():
        net[0].weight.fill_(1.0), net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor([[1.0], [0.0]])), net[2].bias.zero_()
    encoding = encode(net, Box(torch.tensor([[-1.0]]), torch.tensor([[2.0]])))
    problem = encoding.problem(np.array([1.0, 0.0]), 0.0)
    assert problem.binaries == 1
    import dataclasses

    pinned = dataclasses.replace(problem, upper=np.where(np.arange(len(problem.upper)) == 0, 0.5, problem.upper))
    assert solve(pinned.relaxed(), LIMITS).objective == pytest.approx(2 / 3 * 1.5, abs=1e-5)
    assert solve(pinned, LIMITS).objective == pytest.approx(0.5, abs=1e-5)


def test_stable_neurons_cost_nothing() -> None:
    net = tiny_net([3, 5, 5, 3], 0)
    encoding = encode(net, LinfBall(torch.rand(1, 3), 0))
    problem = encoding.problem(MARGIN, 0.0)
    assert problem.binaries == 0
    assert problem.matrix.shape == (0, 3)
    assert problem.offset == pytest.approx(float(problem.offset))


def test_the_smallest_of_several_rows_is_attained_and_no_sample_is_above_it() -> None:
    net = tiny_net([3, 6, 6, 3], 3, scale=2.0)
    region = LinfBall(torch.full((1, 3), 0.5), "1/2")
    encoding = encode(net, region)
    rows, offsets = np.array([[-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]]), np.array([0.25, -0.125])
    outcome = solve(encoding.smallest(rows, offsets), LIMITS)
    assert outcome.point is not None
    points = torch.cat([torch.rand(200_000, 3), torch.from_numpy(outcome.point[:3]).float()[None]])
    values = (net(points).double().numpy() @ rows.T + offsets).min(1)
    assert values[-1] == pytest.approx(outcome.objective, abs=1e-4)
    assert values[:-1].max() <= outcome.objective + 1e-5
    assert outcome.objective < max(maximum(encoding, row) for row in rows)


class ReadsAShape(nn.Module):
    """Adds a constant that is made like the input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.relu(self.a(x + torch.full_like(x, 0.25))))


def test_calls_that_read_a_shape_are_constants() -> None:
    torch.manual_seed(0)
    net, region = ReadsAShape().eval(), LinfBall(torch.full((1, 3), 0.5), "1/4")
    with torch.no_grad():
        points = net(0.25 + torch.rand(100_000, 3) / 2).double().numpy() @ MARGIN
    found = maximum(encode(net, region), MARGIN)
    assert points.max() - 1e-5 <= found <= points.max() + 0.1


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1, groups=3)
        self.norm, self.last = nn.BatchNorm2d(3), nn.Linear(27, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm(self.a((x - 0.3) / 0.5)))
        h = F.relu(h - 0.5 * self.b(h))
        return self.last(h.flatten(1))


def _conv(**options: int) -> nn.Sequential:
    probe = nn.Conv2d(2, 4, **options)
    size = probe(torch.zeros(1, 2, 5, 5)).numel()
    return nn.Sequential(probe, nn.ReLU(), nn.Flatten(), nn.Linear(size, 3))


class Choices(nn.Module):
    """Max-pooling after a convolution, maxout by split, minimum, clamp, leaky slope, hard tanh, amax, cat."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mid, self.last = nn.Conv2d(1, 4, 2), nn.Linear(4, 6), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.max_pool2d(self.conv(x), 2, stride=1)  # (B, 4, 2, 2)
        a, b = h.amax((2, 3)).split(2, dim=1)
        h = torch.cat([torch.maximum(a, b), torch.minimum(a, 2 * b)], 1)
        h = F.hardtanh(self.mid(F.leaky_relu(h, 0.2)) * 3)
        return self.last(torch.cat([h.clamp(min=-0.5), a.abs()], 1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "stride": (lambda: _conv(kernel_size=3, stride=2), (2, 5, 5)),
    "padding": (lambda: _conv(kernel_size=3, padding=1, stride=3), (2, 5, 5)),
    "dilation": (lambda: _conv(kernel_size=2, dilation=2), (2, 5, 5)),
    "groups": (lambda: _conv(kernel_size=2, groups=2, stride=3), (2, 5, 5)),
    "residual": (Residual, (1, 3, 3)),
    "choices": (Choices, (1, 4, 4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_encoding_follows_the_network(name: str) -> None:
    """At a point the only output is the network's; over a box no sample is above the maximum."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    net = build().eval().requires_grad_(False)
    x = torch.rand(1, *shape)
    exact = encode(net, LinfBall(x, 0))
    want = net.double()(x.double())[0].detach()
    net.float()
    for row in np.eye(3):
        assert maximum(exact, row) == pytest.approx(float(want @ torch.tensor(row)), abs=1e-5)
    region = LinfBall(x, "1/20", clip=(0, 1))
    encoding = encode(net, region)
    problem = encoding.problem(MARGIN, 0.0)
    outcome = solve(problem, LIMITS)
    sampled = (net(samples(region, 2000)) @ torch.tensor(MARGIN).float()).max()
    assert float(sampled) <= outcome.dual_bound + 1e-5
    point = encoding.input_of(outcome.point, x[0])
    at_point = net(point.float().unsqueeze(0))[0].detach().double() @ torch.tensor(MARGIN)
    assert float(at_point) == pytest.approx(outcome.objective, abs=1e-4)


@pytest.mark.parametrize(
    ("pieces", "fn"),
    [
        (((-np.inf, 0.0, 0.0), (0.0, 1.0, 0.0)), F.relu),
        (((-np.inf, 0.1, 0.0), (0.0, 1.0, 0.0)), lambda x: F.leaky_relu(x, 0.1)),
        (((-np.inf, -1.0, 0.0), (0.0, 1.0, 0.0)), torch.abs),
        (((-np.inf, 1.0, 0.0), (1.0, 0.0, 1.0)), lambda x: x.clamp(max=1.0)),
        (((-np.inf, 0.0, -1.0), (-1.0, 1.0, 0.0), (1.0, 0.0, 1.0)), F.hardtanh),
        (((-np.inf, 0.0, 0.0), (0.0, 1.0, 0.0), (1.5, -2.0, 4.5), (2.0, 0.5, -0.5)), None),
    ],
)
def test_pieces_are_exact(pieces: tuple[tuple[float, float, float], ...], fn: Callable | None) -> None:
    """Maximise and minimise y - s x for several slopes over many intervals: a grid knows the answer."""

    def reference(x: torch.Tensor) -> torch.Tensor:
        if fn is not None:
            return fn(x)
        y = torch.zeros_like(x)
        for start, slope, intercept in pieces:
            y = torch.where(x >= start, slope * x + intercept, y)
        return y

    for low, high in (
        (-2.0, 3.0),
        (-0.5, 0.5),
        (0.25, 2.5),
        (-3.0, -0.5),
        (0.0, 1.0),
        (-1.0, 0.0),
        (1.5, 2.0),
    ):
        grid = torch.cat([torch.linspace(low, high, 2001), torch.tensor([p[0] for p in pieces[1:]])]).double()
        grid = grid[(grid >= low) & (grid <= high)]
        for slope in (-1.5, 0.3):
            for sign in (1.0, -1.0):
                encoder = Encoder()
                x = encoder.variables(np.array([low]), np.array([high]))
                y = encode_pieces(encoder, pieces, x)
                assert y.lower[0] <= float(reference(grid).min()) + 1e-9
                assert y.upper[0] >= float(reference(grid).max()) - 1e-9
                value = Encoding(encoder, 1, _both(encoder, x, y))
                found = maximum(value, sign * np.array([-slope, 1.0]))
                truth = float((sign * (reference(grid) - slope * grid)).max())
                assert found == pytest.approx(truth, abs=1e-5)


def _both(encoder: Encoder, *parts: Expression) -> Expression:
    from surebound.rules.mip.expression import stack

    return stack(list(parts))


def test_maximum_is_exact() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        lower = rng.normal(size=4)
        upper = lower + rng.uniform(0, 1.5, size=4)
        encoder = Encoder()
        x = encoder.variables(lower, upper)
        y = encode_maximum(encoder, x, np.array([[0, 1, 2, -1], [1, 3, -1, -1]]), (2,))
        encoding = Encoding(encoder, 4, y)
        assert maximum(encoding, np.array([1.0, 0.0])) == pytest.approx(upper[:3].max(), abs=1e-6)
        assert -maximum(encoding, np.array([-1.0, 0.0])) == pytest.approx(lower[:3].max(), abs=1e-6)
        # max(x0, x1, x2) - max(x1, x3): x1 at its lower end or equal in both
        grid = np.stack(np.meshgrid(*[np.linspace(a, b, 7) for a, b in zip(lower, upper, strict=True)]), -1)
        grid = grid.reshape(-1, 4)
        truth = (grid[:, :3].max(1) - grid[:, [1, 3]].max(1)).max()
        assert maximum(encoding, np.array([1.0, -1.0])) == pytest.approx(truth, abs=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "stride": 1, "dilation": 2},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    ],
)
def test_pool_windows_are_those_of_the_operator(options: dict[str, int]) -> None:
    x = torch.rand(1, 2, 5, 6, dtype=torch.float64)
    want = F.max_pool2d(x, **options)
    rest = {name: value for name, value in options.items() if name != "kernel_size"}
    found, sizes = pool_windows(x.shape, options["kernel_size"], **rest)
    assert sizes == list(want.shape[2:])
    windows = found.numpy()
    values = np.where(windows >= 0, x.numpy().ravel()[windows], -np.inf).max(1)
    assert values == pytest.approx(want.numpy().ravel())


def test_what_is_not_piecewise_linear_is_refused_all_at_once() -> None:
    class Bent(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x) + torch.softmax(x, 1)

    with pytest.raises((UnsupportedOperatorError, BoundError)):
        encode(Bent(), LinfBall(torch.zeros(1, 2), "1/10"))


def test_infinite_bounds_are_refused() -> None:
    with pytest.raises(BoundError, match="finite bounds"):
        Encoder().variables(np.array([0.0]), np.array([np.inf]))


class MadeInside(nn.Module):
    """A weight that forward() computes: in the network's dtype, also where everything else is in float64."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.linspace(-1, 1, 6).sin().reshape(3, 2)


def test_constants_of_the_code_are_those_of_the_network() -> None:
    x = torch.tensor([[0.2, 0.5, 0.9]])
    encoder = NetworkEncoder(program_of(MadeInside(), x))
    ends = {encoder.program.graph.input: Interval.point(x)}
    output = encoder.encode(ends).output
    weight = torch.linspace(-1, 1, 6).sin().reshape(3, 2).double()
    assert output.lower.tolist() == pytest.approx((x.double() @ weight)[0].tolist(), abs=1e-15)
    assert sb.decide(MadeInside(), sb.LinfBall(x, "1/100"), torch.tensor([1]), stages=("mip",), tolerance=True)


def test_a_clamp_whose_ends_cross_is_its_upper_one() -> None:
    class Crossed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.first = nn.Linear(2, 4)
            self.last = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = 3 * self.first(x)
            found: Tensor = self.last(torch.clamp(y, 0.7, -0.3) + torch.clamp(y, min=0.0))
            return found

    net = Crossed().requires_grad_(False)
    region = LinfBall(torch.full((1, 2), 0.5), "1/2")
    largest = float((net(samples(region)) @ torch.from_numpy(MARGIN).float()).max())
    assert maximum(encode(net, region), MARGIN) == pytest.approx(largest, abs=0.02)
