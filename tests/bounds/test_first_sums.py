"""Intervals over l1 and l2 balls: layers that read the input meet the dual norm, and no row is wrong by a padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.constants import Constants
from surebound.bounds.first_sums import first_sums
from surebound.graph import program_of
from surebound.numerics import Soundness
from tests.bounds.balls import exact_ends, points_of

BALLS = (sb.L2Ball, sb.L1Ball)
MODES = (Soundness.NONE, Soundness.DEPLOYED)


class Normalise(nn.Module):
    """(x - mean) / deviation, by channel, as zoo networks do; one deviation is negative."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.linspace(0.2, 0.6, shape[0]).reshape(shape))
        self.register_buffer("deviation", torch.tensor([-0.3, 0.2, 0.4])[: shape[0]].reshape(shape))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


class Times(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Repeated(nn.Module):
    """Every entry is read twice: the sum of two halves is not a sum of independent entries."""

    def __init__(self) -> None:
        super().__init__()
        self.rest = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(x.repeat(1, 2))


def _bn(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        for value in (norm.weight, norm.bias, norm.running_mean):
            value.normal_()
        norm.running_var.uniform_(0.5, 2)
    return norm


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "tokens": (lambda: nn.Linear(5, 4), (3, 5)),
    "matmul": (lambda: Times(6, 4), (6,)),
    "flatten, linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 4)), (2, 4, 4)),
    "normalised": (lambda: nn.Sequential(Normalise(2, 1, 1), nn.Flatten(), nn.Linear(32, 4)), (2, 4, 4)),
    "batch norm": (lambda: nn.Sequential(_bn(2), nn.Conv2d(2, 3, 3)), (2, 4, 4)),
    "padded": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 5, 4)),
    "strided": (lambda: nn.Conv2d(2, 3, (3, 2), stride=2, padding=(2, 1)), (2, 5, 6)),
    "dilated": (lambda: nn.Conv2d(2, 3, 2, dilation=2, padding=2), (2, 4, 4)),
    "same": (lambda: nn.Conv2d(2, 3, 3, padding="same", bias=False), (2, 4, 5)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 4, 4)),
    "one axis": (lambda: nn.Conv1d(2, 3, 3, padding=2), (2, 7)),
    "three axes": (lambda: nn.Conv3d(1, 2, 2, padding=1), (1, 3, 3, 2)),
    "normalised and padded": (lambda: nn.Sequential(Normalise(3, 1, 1), nn.Conv2d(3, 2, 3, padding=1)), (3, 4, 4)),
    "zero-padded": (lambda: nn.Sequential(nn.ZeroPad2d((2, 0, 1, 1)), nn.Conv2d(2, 3, 3)), (2, 4, 4)),
}
#: Operators whose dual norm the rules do not know: the box is all that is left.
BOXED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "read twice": (Repeated, (6,)),
    "reflected": (lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(2, 3, 3)), (2, 4, 4)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 2), (2, 3, 3)),
    "pooled": (lambda: nn.AvgPool2d(2), (2, 4, 4)),
    "no sum": (lambda: nn.ReLU(), (6,)),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    make, shape = (NETS | BOXED)[name]
    torch.manual_seed(3)
    net = make().eval().requires_grad_(False)
    x = torch.rand(2, *shape)
    return net, torch.where(x < 0.3, 0.0, torch.where(x > 0.8, 1.0, x))  # many at an end of the clip range


def flat(bounds: sb.Interval) -> tuple[Tensor, Tensor]:
    return bounds.lower.flatten(1).double(), bounds.upper.flatten(1).double()


@pytest.mark.parametrize("make", BALLS)
@pytest.mark.parametrize("clip", [None, (0, 1)])
@pytest.mark.parametrize("name", NETS)
def test_bounds_hold_the_exact_ends_and_are_the_dual_norm(name: str, clip: Any, make: Any) -> None:
    net, x = made(name)
    for mode in MODES:
        low, high = flat(sb.interval_bounds(net, make(x, "2/5", clip), mode))
        for i in range(len(x)):
            ball = make(x[i : i + 1], "2/5", clip)
            least, most = exact_ends(net, ball)
            slack = 1e-5 if mode is Soundness.NONE else 0.0  # plain arithmetic rounds
            assert bool((low[i] <= least + slack).all()) and bool((high[i] >= most - slack).all())
            # Nothing but the ball is in the way; of l1, a zero that is put there counts like its channel's entries.
            if clip is None and (name, make) != ("zero-padded", sb.L1Ball):
                torch.testing.assert_close(low[i], least, atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(high[i], most, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", BALLS)
@pytest.mark.parametrize("name", NETS | BOXED)
def test_executions_at_points_of_the_ball_stay_inside(name: str, make: Any) -> None:
    net, x = made(name)
    for clip, eps in ((None, "1/2"), ((0, 1), "1/2"), ((0, 1), "1/1000000")):
        ball = make(x, eps, clip)
        low, high = flat(sb.interval_bounds(net, ball))
        for point in points_of(ball, 6):
            z = net(point).flatten(1).double()
            assert bool(((low <= z) & (z <= high))[ball.contains(point)].all())


@pytest.mark.parametrize("make", BALLS)
@pytest.mark.parametrize("name", BOXED)
def test_what_the_rules_do_not_know_is_bounded_over_the_box(name: str, make: Any) -> None:
    """A repeated entry moves both of its copies: the norm of their coefficients would be too small."""
    net, x = made(name)
    ball = make(x, "2/5")
    constants = Constants(program_of(net, x))
    assert first_sums(constants, ball.interval(), Soundness.DEPLOYED) == {}
    found, boxed = sb.interval_bounds(net, ball), sb.interval_bounds(net, sb.LinfBall(x, "2/5"))
    assert torch.equal(found.upper, boxed.upper) and torch.equal(found.lower, boxed.lower)


@pytest.mark.parametrize("make", BALLS)
def test_a_box_has_no_dual_norm_and_radius_0_is_the_point(make: Any) -> None:
    net, x = made("padded")
    constants = Constants(program_of(net, x))
    assert first_sums(constants, sb.LinfBall(x, "1/2").interval(), Soundness.DEPLOYED) == {}
    assert first_sums(constants, sb.L0Ball(x, 2).interval(), Soundness.DEPLOYED) == {}
    found = sb.interval_bounds(net, make(x, 0), "none")
    torch.testing.assert_close(found.upper, net(x))
    torch.testing.assert_close(found.lower, net(x))


@pytest.mark.parametrize("make", BALLS)
@pytest.mark.parametrize("clip", [None, (0, 1)])
def test_smaller_balls_have_smaller_bounds_and_none_is_wider_than_the_box(make: Any, clip: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Normalise(2, 1, 1), nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    net.requires_grad_(False)
    x = torch.rand(2, 2, 4, 4)
    before = None
    for eps in ("1/100", "1/10", "1/2", "2", "20"):
        found, boxed = (sb.interval_bounds(net, kind(x, eps, clip)) for kind in (make, sb.LinfBall))
        assert bool((found.upper <= boxed.upper).all()) and bool((found.lower >= boxed.lower).all())
        if before is not None:
            assert bool((before.upper <= found.upper).all()) and bool((before.lower >= found.lower).all())
        before = found
    small, box = (sb.interval_bounds(net, kind(x, "1/10", clip)) for kind in (make, sb.LinfBall))
    assert bool(((small.upper - small.lower) < 0.8 * (box.upper - box.lower)).all())


@pytest.mark.parametrize("make", BALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_that_round_much(make: Any, dtype: torch.dtype) -> None:
    """Coefficients that cancel: executions differ by more than the ball moves them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(400, 6)).to(dtype).requires_grad_(False)
    net[0].weight.mul_(torch.logspace(-6, 6, 400).to(dtype)[torch.randperm(400)])
    x = torch.rand(2, 400, dtype=dtype)
    ball = make(x, "1/1000000000")
    low, high = flat(sb.interval_bounds(net, ball))
    for point in points_of(ball, 6):
        for order in (torch.arange(400), torch.randperm(400)):
            total = net[0].bias.expand(2, 6).clone()
            for i in order.tolist():  # one by one: another order than the library's
                total = total + point[:, i : i + 1] * net[0].weight[:, i]
            assert bool(((low <= total.double()) & (total.double() <= high))[ball.contains(point)].all())


@pytest.mark.parametrize("method", ["interval", "crown-ibp", "zonotope"])
@pytest.mark.parametrize("make", BALLS)
def test_every_method_that_rests_on_intervals_gains(make: Any, method: str) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 3)).requires_grad_(False)
    x = torch.rand(2, 30)
    labels = net(x).argmax(1)
    found, boxed = (sb.worst_margins(net, kind(x, "1/10"), labels, method=method) for kind in (make, sb.LinfBall))
    assert bool((found <= boxed).all()) and bool((found < 0.7 * boxed)[boxed > 0].any())


@pytest.mark.parametrize("make", BALLS)
def test_a_linear_network_meets_the_dual_norm_by_intervals(make: Any) -> None:
    net = nn.Linear(8, 2).requires_grad_(False)
    x = torch.rand(1, 8)
    row = (net.weight[1] - net.weight[0]).double()
    dual = float(row.norm() if make is sb.L2Ball else row.abs().max())
    z = net.double()(x.double())
    net.float()
    exact = float(z[0, 1] - z[0, 0]) + 0.3 * dual
    for mode in MODES:
        found = float(sb.worst_margins(net, make(x, "3/10"), torch.tensor([0]), soundness=mode)[0, 1])
        assert found == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("make", BALLS)
def test_bounds_are_differentiable(make: Any) -> None:
    """The gradient of plain arithmetic, by central differences; also where a row is 0."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    net = nn.Sequential(*layers).double()
    x, labels = torch.rand(2, 1, 4, 4, dtype=torch.float64), torch.tensor([0, 1])

    def loss() -> Tensor:
        return sb.worst_margins(net, make(x, "1/5", (0, 1)), labels, soundness="none").square().sum()

    loss().backward()
    weight = net[0].weight
    for at in ((0, 0, 0, 1), (1, 0, 2, 2)):
        with torch.no_grad():
            kept = float(weight[at])
            ends = []
            for step in (1e-6, -1e-6):
                weight[at] = kept + step
                ends.append(float(loss()))
            weight[at] = kept
        assert float(weight.grad[at]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-6)
    with torch.no_grad():
        weight[0] = 0
    weight.grad = None
    loss().backward()
    assert bool(weight.grad.isfinite().all())
