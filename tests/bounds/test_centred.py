"""Steps about the centre of the bounds: exact in fractions, refuted without their payments, and cheap where values vary
little."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear import centred, steps
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.linear.steps import AffineStep
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.kernels.rows import Price
from surebound.numerics import Soundness


@pytest.fixture(autouse=True)
def short_sums_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(centred, "LONG", 0)


def stepped(net: nn.Module, box: Interval, mode: Soundness = Soundness.REAL) -> tuple[Relaxed, AffineStep]:
    with torch.no_grad():
        relaxed = relax(program_of(net, box.lower), box, mode, own=False)
    step = relaxed.steps[relaxed.program.graph.output]
    assert isinstance(step, AffineStep)
    return relaxed, step


def layer(inputs: int, outputs: int, seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs).requires_grad_(False)


def far_box(inputs: int, seed: int, width: float) -> Interval:
    x = 10 + torch.rand(1, inputs, generator=torch.Generator().manual_seed(seed))
    return Interval(x, x + width)


def exactly(a: Tensor, b: Tensor) -> Fraction:
    return sum((Fraction(p) * Fraction(q) for p, q in zip(a.tolist(), b.tolist(), strict=True)), Fraction(0))


def exceeded(net: nn.Linear, step: AffineStep, box: Interval, a: Tensor) -> bool:
    """Is a.y > coefficients.x + offset at a corner, in fractions?"""
    with torch.no_grad():
        pulled = step.pull(a.reshape(1, 1, -1))
    back, offset = pulled.coefficients[0][0, 0].double(), Fraction(float(pulled.offset))
    for x in (box.lower[0], box.upper[0], torch.where(back > 0, box.lower[0], box.upper[0])):
        y = [
            exactly(row, x.double()) + Fraction(float(b)) for row, b in zip(net.weight.double(), net.bias, strict=True)
        ]
        if sum(Fraction(p) * q for p, q in zip(a.tolist(), y, strict=True)) > exactly(back, x.double()) + offset:
            return True
    return False


@pytest.mark.parametrize("width", [0.0, 2.0**-12, 1.0])
def test_steps_hold_in_fractions_and_without_payments_do_not(width: float) -> None:
    unpaid = 0
    for seed in range(12):
        net, box = layer(40, 30, seed), far_box(40, seed, width)
        _, step = stepped(net, box)
        assert step.recentre is not None and step.error is not None
        a = torch.randn(30, generator=torch.Generator().manual_seed(100 + seed))
        assert not exceeded(net, step, box, a)
        nothing = torch.zeros_like(step.error)
        bare = dataclasses.replace(step, error=nothing, recentre=Price(step.recentre.plain))
        unpaid += exceeded(net, bare, box, a)
    assert unpaid


def test_what_is_paid_goes_with_the_radius() -> None:
    net = layer(200, 30, 0)
    paid = {}
    for width in (2.0**-12, 20.0):
        box = far_box(200, 0, width)
        _, step = stepped(net, box)
        assert step.error is not None
        paid[width] = float(step.error.mean())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "centred", lambda *given: None)
        _, plain = stepped(net, far_box(200, 0, 2.0**-12))
    assert plain.recentre is None and plain.error is not None
    assert 20 * paid[2.0**-12] < float(plain.error.mean())
    assert paid[2.0**-12] < 0.1 * paid[20.0]


def test_other_modes_and_operators_are_as_they_were() -> None:
    net, box = layer(8, 4, 0), far_box(8, 0, 0.5)
    for mode in (Soundness.NONE, Soundness.DEPLOYED):
        assert stepped(net, box, mode)[1].recentre is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(centred, "LONG", 13)  # 8 and 4 summands
        assert stepped(net, box)[1].recentre is None
    wide = Interval(box.lower.clone().fill_(-torch.inf), box.upper)
    assert stepped(net, wide)[1].recentre is None


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


def test_windows_and_batches_have_the_bounds_of_single_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recentred steps in windows, of one example and of several, against whole images and against none of it."""
    torch.manual_seed(0)
    net = Convolutions().requires_grad_(False)
    x = torch.rand(3, 2, 8, 8) + 5
    spec = sb.LinearSpec(torch.cat([torch.eye(3), -torch.eye(3)]))

    def margins(points: Tensor, method: str = "crown", mode: str = "real") -> Tensor:
        return sb.worst_margins(net, sb.LinfBall(points, "1/20"), spec=spec, method=method, soundness=mode)

    together, single = margins(x), torch.cat([margins(one) for one in x.split(1)])
    torch.testing.assert_close(together, single, rtol=1e-5, atol=1e-5)
    plain = margins(x, mode="none")
    assert bool((single >= plain - 1e-5).all())
    draws = x.repeat(50, 1, 1, 1) + (2 * torch.rand(150, 2, 8, 8) - 1) / 20
    z = net(draws)
    assert bool((torch.cat([z, -z], 1) <= single.repeat(50, 1) + 1e-5).all())
    monkeypatch.setattr("surebound.bounds.linear.windows._WORTH", 0.0)
    torch.testing.assert_close(margins(x[:1]), single[:1], rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(steps, "centred", lambda *given: None)
    before = margins(x[:1])
    assert float((single[:1] - plain[:1]).mean()) < 0.5 * float((before - plain[:1]).mean())
