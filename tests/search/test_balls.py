"""Branch and bound over l1 and l2 balls: decided where exact maxima say so, never where points of the ball differ."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear.ball import ball_corner, ball_maximum, outside
from surebound.errors import InputError, RegionError
from surebound.interval import Interval
from surebound.norm_ball import Ball
from surebound.numerics import Soundness
from tests.bounds.balls import exact_maximum, greatest, points_of

BALLS = (sb.L2Ball, sb.L1Ball)


def small(seed: int, inputs: int = 2, hidden: int = 6) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 2)).requires_grad_(False)
    for value in net.parameters():
        value.mul_(2)
    return net


@pytest.mark.parametrize("make", BALLS)
@pytest.mark.parametrize("clip", [None, (0, 1)])
def test_the_exact_maximum_decides(make: Any, clip: Any) -> None:
    """By enumeration of all pieces of networks of two inputs; bounds and attacks are left out."""
    row = torch.tensor([[1.0, -1.0]])
    for seed in range(6):
        net, x = small(seed), torch.rand(1, 2, generator=torch.Generator().manual_seed(seed))
        ball = make(x, "2/5", clip)
        most = exact_maximum(net, ball, row[0])
        for apart, expected in ((1e-4, "robust"), (-1e-4, "falsified")):
            spec = sb.LinearSpec(row, torch.tensor([-most - apart]))
            (found,) = sb.decide(net, ball, spec, stages=("relu-splitting",), timeout=60)
            assert found.status.value == expected, (seed, apart, found)
            if found.witness is not None:
                point = found.witness[None]
                assert ball.contains(point).item() and float(net(point)[0] @ row[0]) > most + apart


@pytest.mark.parametrize("make", BALLS)
def test_inputs_may_be_cut_instead(make: Any) -> None:
    row = torch.tensor([[1.0, -1.0]])
    for seed in (0, 1):
        net, x = small(seed), torch.rand(1, 2, generator=torch.Generator().manual_seed(seed))
        ball = make(x, "2/5", (0, 1))
        most = exact_maximum(net, ball, row[0])
        for apart, expected in ((0.02, "robust"), (-0.02, "falsified")):
            spec = sb.LinearSpec(row, torch.tensor([-most - apart]))
            (found,) = sb.decide(net, ball, spec, stages=("input-splitting",), timeout=60)
            assert found.status.value == expected, (seed, apart, found)


@pytest.mark.parametrize("make", BALLS)
def test_what_is_proved_has_no_counterexample(make: Any) -> None:
    """Deeper networks, a normalisation and a convolution among them; points and PGD look for one."""
    torch.manual_seed(0)
    deep = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 3))
    images = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)
    )
    smooth = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))
    seen = set()
    for net, shape in ((deep, (5,)), (images, (1, 4, 4)), (smooth, (3,))):
        net.requires_grad_(False)
        x = torch.rand(2, *shape)
        net[-1].bias.sub_(net(x).mean(0))  # so that both classes are near
        labels = net(x).argmax(1)
        for eps in ("1/10", "1/2"):
            ball = make(x, eps, (0, 1))
            for record in sb.verify(net, ball, labels, timeout=10):
                verdict, one = record.verdict, ball[record.index : record.index + 1]
                seen.add((verdict.status.value, verdict.stage))
                for point in points_of(one, 20) if verdict.status.value == "robust" else ():
                    assert not one.contains(point).item() or int(net(point).argmax(1)) == record.label
                if verdict.witness is not None:
                    assert one.contains(verdict.witness[None]).item()
                    assert int(net(verdict.witness[None]).argmax(1)) != record.label
    assert "branch-and-bound" in {stage for _, stage in seen}
    assert {"robust", "falsified"} <= {status for status, _ in seen}


def balls_of(draw: torch.Generator, norm: int, count: int = 40) -> list[tuple[Ball, Tensor]]:
    """Return balls (1, n) cut by boxes around them, some of whose entries cannot move, and rows (3, 1, n)."""
    found = []
    for _ in range(count):
        origin = torch.randn(1, 7, generator=draw).double()
        low = torch.rand(1, 7, generator=draw).double() * (torch.rand(1, 7, generator=draw) < 0.8)
        high = torch.rand(1, 7, generator=draw).double() * (torch.rand(1, 7, generator=draw) < 0.8)
        reach = float(torch.rand((), generator=draw)) * 1.5 + 0.05
        ball = Ball(Interval(origin - low, origin + high), origin, reach, norm)
        rows = torch.randn(3, 1, 7, generator=draw).double() * (torch.rand(3, 1, 7, generator=draw) < 0.8)
        found.append((ball, rows))
    return found


@pytest.mark.parametrize("norm", [1, 2])
def test_maxima_of_linear_functions_are_exact_from_above_and_corners_from_below(norm: int) -> None:
    for ball, rows in balls_of(torch.Generator().manual_seed(norm), norm):
        low, high = (end - ball.origin for end in (ball.lower, ball.upper))
        offset = torch.zeros(3, 1, dtype=torch.float64)
        found = ball_maximum(rows, ball, offset, Soundness.DEPLOYED)
        corners = ball_corner(rows[:, 0], ball)
        for i in range(3):
            args = (rows[i, 0].tolist(), low[0].tolist(), high[0].tolist(), ball.reach, norm)
            exact = greatest(*args) + float(rows[i, 0] @ ball.origin[0])
            assert exact <= float(found[i, 0]) + 1e-12
            if norm == 1:
                assert float(found[i, 0]) == pytest.approx(exact, abs=1e-9)
                assert float(rows[i, 0] @ corners[i]) == pytest.approx(exact, abs=1e-9)
            moved = corners[i] - ball.origin[0]
            assert float(moved.norm(p=norm)) <= ball.reach * (1 + 1e-9)
            assert bool((moved >= low - 1e-12).all() and (moved <= high + 1e-12).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", [1, 2])
def test_maxima_hold_in_fractions_where_sums_cancel(norm: int, dtype: torch.dtype) -> None:
    """The value at the ball's middle, and at a point of it, is below the maximum by no tolerance at all."""
    draw, unpaid = torch.Generator().manual_seed(7), 0
    for _ in range(60):
        origin = (torch.randn(1, 6, generator=draw) * 2.0 ** torch.randint(0, 12, (1, 6), generator=draw)).to(dtype)
        row = (torch.randn(1, 1, 6, generator=draw) * 2.0 ** torch.randint(0, 12, (1, 1, 6), generator=draw)).to(dtype)
        offset = -(row * origin).sum(2).double()  # what is left is rounding
        reach = 2.0**-60
        ball = Ball(Interval(origin.clone(), origin.clone()), origin, reach, norm)
        pairs = zip(row.flatten().tolist(), origin.flatten().tolist(), strict=True)
        exact = sum((Fraction(a) * Fraction(o) for a, o in pairs), Fraction(0))
        exact += Fraction(float(offset))
        for mode in (Soundness.REAL, Soundness.DEPLOYED):
            assert exact <= Fraction(float(ball_maximum(row, ball, offset, mode)))
        unpaid += exact > Fraction(float(ball_maximum(row, ball, offset, Soundness.NONE)))
    assert unpaid > 3  # what the payment is for


@pytest.mark.parametrize("norm", [1, 2])
def test_boxes_far_from_their_ball_are_left_out_and_no_others(norm: int) -> None:
    draw = torch.Generator().manual_seed(5)
    for _ in range(60):
        origin = torch.randn(1, 3, generator=draw).double()
        low = origin + torch.randn(1, 3, generator=draw).double()
        box = Interval(low, low + torch.rand(1, 3, generator=draw).double())
        nearest = (origin.clamp(box.lower, box.upper) - origin).norm(p=norm)
        for factor, expected in ((1.001, False), (1.0, False), (0.999, True)):
            reach = float(nearest) * factor
            if reach > 0:
                assert bool(outside(Ball(box, origin, reach, norm))) is expected


@pytest.mark.parametrize("make", BALLS)
def test_specifications_of_several_rows_and_what_is_refused(make: Any) -> None:
    net, x = small(3), torch.tensor([[0.4, 0.6]])
    ball = make(x, "1/10", (0, 1))
    z = net(x)[0]
    near = sb.Spec.within((z - 5).tolist(), (z + 5).tolist())
    assert sb.decide(net, ball, near)[0].status.value == "robust"
    assert sb.decide(net, ball, sb.Spec.within((z - 1e-3).tolist(), (z + 5).tolist()))[0].status.value == "falsified"
    assert sb.decide(net, make(x, 0), near)[0].status.value == "robust"
    with pytest.raises(InputError, match="certificates speak of boxes"):
        sb.decide(net, ball, near, certificates="certificates")
    with pytest.raises(RegionError, match="programs know boxes"):
        sb.decide(net, ball, near, stages=("mip",))
    with pytest.raises(RegionError, match="two points is decided over boxes"):
        sb.decide(net, ball, sb.Spec.monotone(0, 0))
