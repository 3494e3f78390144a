"""Balls of other norms: nothing inside leaves the bounds, the dual norm is met, and nobody takes them for less."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import nn

import surebound as sb
from surebound.attack.methods import PGD
from surebound.errors import RegionError

BALLS = (sb.L2Ball, sb.L1Ball)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)).requires_grad_(
        False
    )


@pytest.fixture(scope="module")
def x():
    return torch.rand(4, 6, generator=torch.Generator().manual_seed(1))


def inside(ball, count):
    """Draw points of every ball, half of them on its surface; those that rounding puts outside are left out."""
    draw = torch.Generator().manual_seed(2)
    for number in range(count):
        way = torch.randn(ball.x.shape, generator=draw)
        way = way * (torch.rand(way.shape, generator=draw) < 0.5)
        share = 1.0 if number % 2 else float(torch.rand((), generator=draw))
        size = way.double().norm(p=ball.norm, dim=1, keepdim=True).clamp(min=1e-9)
        point = (ball.x + share * float(ball.eps) * way / size).float()
        yield point if ball.clip is None else point.clamp(*ball.clip)


@pytest.mark.parametrize("make", BALLS)
@pytest.mark.parametrize("clip", [None, (0, 1)])
@pytest.mark.parametrize("method", ["interval", "zonotope", "symbolic", "crown-ibp", "crown", "alpha-crown"])
def test_points_of_the_ball_never_leave_the_bounds(net, x, make, clip, method):
    labels = net(x).argmax(1)
    ball = make(x, "3/5", clip)
    upper = sb.worst_margins(net, ball, labels, method=method)
    for point in inside(ball, 200):
        z, held = net(point), ball.contains(point)
        margins = z - z.gather(1, labels[:, None])
        assert bool((margins <= upper)[held].all())
    broken = sb.attack(net, ball, labels, PGD(steps=30, restarts=2))
    assert bool(ball.contains(broken.adversarial).all())
    z = net(broken.adversarial)
    assert bool((z - z.gather(1, labels[:, None]) <= upper).all())


@pytest.mark.parametrize("make", BALLS)
def test_a_linear_function_comes_to_its_dual_norm(make):
    net = nn.Linear(5, 2, bias=False).requires_grad_(False)
    ball = make(torch.zeros(1, 5), "1/2")
    row = (net.weight[1] - net.weight[0]).double()
    dual = float(row.norm()) if make is sb.L2Ball else float(row.abs().max())
    found = float(sb.worst_margins(net, ball, torch.tensor([0]), method="crown")[0, 1])
    assert 0.5 * dual <= found <= 0.5 * dual * (1 + 1e-4)


@pytest.mark.parametrize("make", BALLS)
def test_larger_balls_have_wider_bounds_and_radius_0_is_the_point(net, x, make):
    labels = net(x).argmax(1)
    radii = (0, "1/100", "1/10", "1/2")
    found = [sb.worst_margins(net, make(x, eps, (0, 1)), labels, method="crown") for eps in radii]
    z = net(x)
    assert torch.allclose(found[0], z - z.gather(1, labels[:, None]), atol=1e-5)
    for small, large in pairwise(found):
        assert bool((small <= large + 1e-6).all())
    boxed = sb.worst_margins(net, sb.LinfBall(x, "1/2", (0, 1)), labels, method="crown")
    assert bool((found[-1] <= boxed + 1e-6).all()) and bool((found[-1] < boxed - 1e-3).any())


def test_clipping_tightens_what_the_box_stops():
    net = nn.Linear(4, 2, bias=False).requires_grad_(False)
    net.weight.copy_(torch.tensor([[0.0] * 4, [1.0, 1.0, 1.0, 1.0]]))
    corner = torch.tensor([[1.0, 1.0, 1.0, 0.0]])  # only the last entry can grow
    upper = sb.worst_margins(net, sb.L2Ball(corner, "1/2", (0, 1)), torch.tensor([0]), method="crown")
    assert float(upper[0, 1]) == pytest.approx(3.5, abs=1e-5)


@pytest.mark.parametrize("make", [sb.L2Ball, sb.L1Ball])
def test_one_radius_as_a_number(make):
    """A tensor was taken for radii per coordinate, and then for a ball of radius 1, however large it was."""
    x = torch.zeros(1, 2)
    for eps in (torch.tensor(3.0), torch.full((1, 2), 3.0), torch.ones(2)):
        with pytest.raises(RegionError, match="eps is a tensor; L[12]Ball has one radius"):
            make(x, eps)
    with pytest.raises(RegionError, match=r"takes inputs of shape \(B, n"):
        make(torch.zeros(2), 1)
    with pytest.raises(RegionError, match="points of shape"):
        make(x, 1).contains(torch.zeros(2, 2))


@pytest.mark.parametrize("eps", ["1e-320", "1e-200", "1e160", "1e300"])
def test_radii_whose_squares_are_no_numbers(net, x, eps):
    for clip in (None, (0, 1)):
        found = sb.worst_margins(net, sb.L2Ball(x, eps, clip), net(x).argmax(1), method="crown")
        box = sb.worst_margins(net, sb.LinfBall(x, eps, clip), net(x).argmax(1), method="crown")
        assert not found.isnan().any() and bool((found <= box).all())
        z = net(x)
        assert bool((z - z.amax(1, keepdim=True) <= found).all())


def test_nothing_is_near_infinity():
    ball = sb.L2Ball(torch.tensor([[float("inf"), 0.0]]), 1)
    assert not ball.contains(torch.zeros(1, 2)).any() and not ball.contains(ball.x).any()


def test_membership_is_exact():
    third = sb.L1Ball(torch.zeros(1, 2), Fraction(1, 3))
    near = torch.tensor([[1 / 3, 0.0]])
    assert third.contains(near).item() is (Fraction(near[0, 0].item()) <= Fraction(1, 3))
    assert not third.contains(torch.tensor([[float("nan"), 0.0]])).item()
    assert not sb.L2Ball(torch.zeros(1, 2), 1, (0, 1)).contains(torch.tensor([[-0.5, 0.0]])).item()


@pytest.mark.parametrize("make", BALLS)
def test_verification_proves_and_breaks_what_bounds_and_attacks_do(net, x, make):
    labels = net(x).argmax(1)
    for eps in ("1/50", "2"):
        ball = make(x, eps)
        upper = sb.worst_margins(net, ball, labels, method="alpha-crown")
        others = upper.scatter(1, labels[:, None], -1.0).amax(1)
        for record in sb.verify(net, ball, labels):
            if record.verdict.witness is not None:
                witness = record.verdict.witness[None]
                assert ball[record.index : record.index + 1].contains(witness).item()
                assert int(net(witness).argmax(1)) != record.label
            assert record.verdict.status.value == "robust" or others[record.index] > 0
            # a slack for the order of float sums in a batch; what is proved was bounded, not attacked
            assert record.verdict.status.value != "robust" or others[record.index] <= 1e-4


@pytest.mark.parametrize("make", BALLS)
def test_what_does_not_know_balls_refuses_them(net, x, make):
    ball, labels = make(x, "1/10", (0, 1)), torch.zeros(4).long()
    with pytest.raises(RegionError, match="verify takes balls and patches"):
        sb.verify(net, sb.Box(x, x), labels)
    with pytest.raises(RegionError, match="corners are not in it"):
        sb.linear_bounds(net, ball, sb.LinearSpec(torch.ones(1, 3)))
    with pytest.raises(RegionError, match="negative"):
        make(x, -1)
