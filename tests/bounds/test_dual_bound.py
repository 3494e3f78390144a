"""The dual bound with free dual variables: between the linear program over the same intervals and CROWN-IBP; sound."""

from __future__ import annotations

import pytest
import torch

import surebound as sb
from surebound.bounds.linear.dual import DualBound
from surebound.errors import InputError
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules.registry import Context
from surebound.rules.relax.tilted import tilted_relu
from tests.bounds.oracles import layers_of, lp_maximum
from tests.bounds.test_linear import tiny_net, truth


@pytest.mark.parametrize("mode", ["real", "deployed"])
def test_optimised_dual_variables_are_between_the_linear_program_and_crown_ibp(mode: str) -> None:
    gain, gap = 0.0, 0.0
    for seed in range(3):
        net, (x, c, exact, _) = tiny_net(seed), truth(seed)
        region, spec = sb.LinfBall(x, "1/2"), sb.LinearSpec(c)
        found, start = (
            sb.worst_margins(net, region, spec=spec, method=m, soundness=mode)[0].double()
            for m in (DualBound(steps=30), "crown-ibp")
        )
        assert bool((found <= start + 1e-5).all())
        assert bool((found >= torch.tensor(exact) - 1e-6).all())
        low, high = (v[0].double().numpy() for v in (x - 0.5, x + 0.5))
        inside = []
        ends = low, high
        for weight, bias in layers_of(net)[:-1]:
            mid, rad = weight @ (ends[0] + ends[1]) / 2 + bias, abs(weight) @ (ends[1] - ends[0]) / 2
            inside.append((mid - rad, mid + rad))
            ends = (mid - rad).clip(0), (mid + rad).clip(0)
        best = torch.tensor([lp_maximum(layers_of(net), low, high, inside, row) for row in c.double().numpy()])
        assert bool((found >= best - 1e-5).all())
        gain, gap = gain + float((start - found).mean()), gap + float((found - best).mean())
    assert gain > 0.01
    assert gap < 0.5 * gain  # most of what the linear program can gain over CROWN-IBP


@pytest.mark.parametrize("mode", list(Soundness))
def test_lines_of_any_slope_hold(mode: Soundness) -> None:
    generator = torch.Generator().manual_seed(0)
    ends = torch.randn(2, 400, generator=generator) * torch.logspace(-3, 3, 400)
    box = Interval(ends.amin(0, keepdim=True), ends.amax(0, keepdim=True))
    lower, upper = torch.randn(2, 1, 400, generator=generator)
    found = tilted_relu(Context(mode), box, lower, upper)
    for share in torch.linspace(0, 1, 33).tolist():
        x = (box.lower + (box.upper - box.lower) * share).clamp(box.lower, box.upper).double()
        slack = 0.0 if mode is not Soundness.NONE else 1e-5 * (1 + x.abs())
        assert bool((lower.double() * x + found.intercepts[0].double() <= x.clamp(min=0) + slack).all())
        assert bool((upper.double() * x + found.intercepts[1].double() >= x.clamp(min=0) - slack).all())
    touches = (lower.double() * box.lower.double() + found.intercepts[0].double() - box.lower.clamp(min=0)).abs()
    assert bool((touches <= 1e-4 * (1 + box.magnitude)).any())


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="give steps >= 0"):
        DualBound(steps=-1)


def test_rows_that_no_relu_reaches_linearly() -> None:
    """A sort has interval bounds only, so that nothing is left to optimise behind it."""

    class Sorted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x).relu().sort(1)[0])

    net, ball = Sorted().requires_grad_(False), sb.LinfBall(torch.rand(1, 3), "1/10")
    found = sb.worst_margins(net, ball, torch.tensor([0]), method="dvijotham")
    assert torch.equal(found, sb.worst_margins(net, ball, torch.tensor([0])))
