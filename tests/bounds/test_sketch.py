"""The dual bound: against brute force, linear programs and CROWN; its estimate: near it, and never a verdict."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.training.dual import bound_margins, values_to_keep
from surebound.bounds.training.engine import training_pass
from surebound.bounds.training.projections import sketch
from surebound.bounds.training.projections.estimate import Estimate, Projections
from surebound.bounds.training.projections.sketch import estimated_margins
from surebound.errors import BoundError, InputError
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness, proved
from surebound.search.question import Proof, margins_of
from tests.bounds.oracles import exact_maximum, layers_of, lp_maximum, sampled_maximum
from tests.bounds.test_dual import NETS, X, Y


def tiny() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).double()


def dual(net: nn.Module, x: Tensor, eps: float, memory: int = 1 << 29) -> Relaxed:
    box = Interval((x - eps).clamp(0, 1), (x + eps).clamp(0, 1))
    return relax(program_of(net, x), box, Soundness.NONE, own=True, slopes="upper", memory=memory)


def estimate(net: nn.Module, x: Tensor, eps: float, count: int, seed: int = 0, memory: int = 1 << 29) -> Estimate:
    program = program_of(net, x)
    done = training_pass(program, x, Y, eps, clean=False, keep=values_to_keep(program))
    box = Interval((x - eps).clamp(0, 1), (x + eps).clamp(0, 1))
    chosen = Projections(count, torch.Generator().manual_seed(seed), memory)
    return estimated_margins(program, done, box, Y, chosen)


def test_above_brute_force_and_above_the_linear_program() -> None:
    """A dual value is no less than the optimum of the relaxation, and that no less than the truth."""
    net, eps = tiny(), 0.3
    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        relaxed = dual(net, x, eps)
        found = bound_margins(relaxed, Y)
    layers = layers_of(net)
    loose = 0
    for b in range(4):
        low, high = (x[b] - eps).clamp(0, 1).numpy(), (x[b] + eps).clamp(0, 1).numpy()
        pre = [relaxed.bounds[relaxed.source(name)] for name in relaxed.activations]
        bounds = [(box.lower[b].numpy(), box.upper[b].numpy()) for box in pre]
        for k in range(3):
            c = np.eye(3)[k] - np.eye(3)[int(Y[b])]
            if k == int(Y[b]):
                continue
            best = exact_maximum(layers, low, high, c)
            optimum = lp_maximum(layers, low, high, bounds, c)
            sampled = sampled_maximum(net, torch.tensor(low), torch.tensor(high), torch.tensor(c)[None]).item()
            assert sampled <= best + 1e-9
            assert best <= optimum + 1e-7
            assert optimum <= found[b, k].item() + 1e-7
            loose += found[b, k].item() > best + 1e-6
    assert loose  # the net has unstable units, or this test says nothing


def by_hand(net: nn.Sequential, x: Tensor, eps: float, c: Tensor) -> Tensor:
    """Wong & Kolter 2018, theorem 1, one example, dense matrices, straight from the paper (their bound is of -c.z)."""
    layers = [m for m in net if isinstance(m, nn.Linear)]
    low, high = (x - eps).clamp(0, 1), (x + eps).clamp(0, 1)
    center, radius = (low + high) / 2, (high - low) / 2
    known: list[tuple[Tensor, Tensor]] = []  # bounds of the pre-activations

    def largest(rows: Tensor, depth: int) -> Tensor:
        """max of rows . (value of layer ``depth``), rows (R, n)."""
        total = rows.new_zeros(len(rows))
        nu = rows
        for i in range(depth, -1, -1):
            total = total + nu @ layers[i].bias
            nu = nu @ layers[i].weight
            if i:
                lo, hi = known[i - 1]
                slope = torch.where(lo >= 0, 1.0, torch.where(hi <= 0, 0.0, hi / (hi - lo)))
                nu = nu * slope
                unstable = ((lo < 0) & (hi > 0)).to(nu)
                total = total - (nu.clamp(min=0) * lo * unstable).sum(1)
        return total + nu @ center + nu.abs() @ radius

    mid, rad = center, radius
    for depth, layer in enumerate(layers[:-1]):
        eye = torch.eye(layer.out_features, dtype=x.dtype)
        mid, rad = layer(mid), layer.weight.abs() @ rad
        lower = torch.maximum(-largest(-eye, depth), mid - rad)  # never looser than intervals
        upper = torch.minimum(largest(eye, depth), mid + rad)
        known.append((lower, upper))
        mid, rad = (lower.relu() + upper.relu()) / 2, (upper.relu() - lower.relu()) / 2
    return largest(c, len(layers) - 1)


def test_equal_to_the_papers_formula() -> None:
    net, eps = tiny(), 0.3
    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = bound_margins(dual(net, x, eps), Y)
    for b in range(4):
        rows = torch.eye(3, dtype=x.dtype) - torch.eye(3, dtype=x.dtype)[Y[b]]
        torch.testing.assert_close(found[b], by_hand(net, x[b], eps, rows), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", list(NETS))
def test_equal_to_crown_with_that_slope(name: str) -> None:
    net = NETS[name]
    region = sb.LinfBall(X, eps="1/20", clip=(0, 1))
    expected = sb.worst_margins(net, region, Y, method="wong", soundness="none")
    interval = sb.worst_margins(net, region, Y, soundness="none")
    with torch.no_grad():
        found = bound_margins(dual(net, X, 0.05), Y)
    torch.testing.assert_close(torch.fmin(found, interval), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "exact"), list(itertools.product(NETS, (True, False))))
def test_gradients_are_those_of_differences(name: str, exact: bool) -> None:
    net = copy.deepcopy(NETS[name]).double()
    x = X.double()

    def loss() -> Tensor:
        margins = bound_margins(dual(net, x, 0.05), Y) if exact else estimate(net, x, 0.05, 9).for_training
        return F.cross_entropy(margins, Y)

    parameters = list(net.parameters())
    found = torch.autograd.grad(loss(), parameters)
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    values = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for p, direction in zip(parameters, directions, strict=True):
                p.add_(direction, alpha=step)
        values.append(loss().item())  # with gradients: without them, fewer units may be bounded
    slope = (values[0] - values[1]) / 2e-6
    assert sum((g * d).sum().item() for g, d in zip(found, directions, strict=True)) == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize("exact", [True, False])
def test_a_low_ceiling_of_memory_changes_nothing(exact: bool) -> None:
    net = NETS["convolutions"]

    def gradients(memory: int) -> list[Tensor]:
        margins = (
            bound_margins(dual(net, X, 0.05, memory), Y)
            if exact
            else estimate(net, X, 0.05, 9, memory=memory).for_training
        )
        return [margins, *torch.autograd.grad(margins.sum(), list(net.parameters()))]

    for a, b in zip(gradients(1 << 29), gradients(10_000), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["norm", "residual"])
def test_the_estimate_approaches_the_dual_bound(name: str) -> None:
    net = copy.deepcopy(NETS[name]).double()
    if name == "residual":
        net.pool = nn.AvgPool2d(2)  # which entry of a window the relaxation of a maximum follows is a jump
    with torch.no_grad():
        exact = bound_margins(dual(net, X.double(), 0.3), Y)
        many = [estimate(net, X.double(), 0.3, 2_001, seed).for_training for seed in (0, 1)]
        few = [estimate(net, X.double(), 0.3, 5, seed).for_training for seed in (0, 1, 2)]
    size = exact.abs().max()
    assert max((m - exact).abs().max() for m in many) < 0.03 * size
    assert max((m - exact).abs().max() for m in many) < max((f - exact).abs().max() for f in few)


@pytest.mark.parametrize("name", list(NETS))
def test_units_that_intervals_settle_need_no_estimate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Margins and gradients are the same with and without estimates for them."""
    net, found, left_out = copy.deepcopy(NETS[name]), [], []
    ask = sketch._Walk._wanted

    def wanted(walk: sketch._Walk, value: str) -> Tensor | None:
        units = ask(walk, value)
        left_out.append(units is not None and not bool(units.all()))
        return units

    for each in (wanted, lambda *_: None):
        monkeypatch.setattr(sketch._Walk, "_wanted", each)
        margins = estimate(net, X, 0.05, 9).for_training
        found.append([margins, *torch.autograd.grad(margins.sum(), list(net.parameters()))])
    assert any(left_out) == (name != "residual")  # there a pooling layer reads the bounds after the ReLU, too
    for a, b in zip(*found, strict=True):  # 1 = u (1 / u) only up to rounding
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class TestNeverAVerdict:
    found = Estimate(torch.full((2, 3), -1.0))

    def test_it_cannot_be_compared(self) -> None:
        with pytest.raises(BoundError, match="estimated margins, not bounds"):
            proved(self.found)  # type: ignore[arg-type]
        for compare in (lambda e: e < 0, lambda e: e <= 0, lambda e: e == 0, bool, float):
            with pytest.raises(BoundError, match="prove nothing"):
                compare(self.found)

    def test_it_is_no_tensor(self) -> None:
        for use in (torch.neg, torch.isfinite, lambda e: torch.zeros(2, 3) + e):
            with pytest.raises((BoundError, TypeError)):
                use(self.found)  # type: ignore[arg-type]

    def test_bounds_do_not_take_projections(self) -> None:
        chosen = Projections(50, torch.Generator())
        with pytest.raises(InputError, match="estimate bounds and prove nothing"):
            sb.worst_margins(NETS["norm"], sb.LinfBall(X, eps="1/20"), Y, method=chosen)  # type: ignore[arg-type]

    def test_verification_does_not_take_it(self) -> None:
        with pytest.raises(BoundError, match="Estimate is no bound"):
            margins_of(self.found, Proof.DEPLOYED)  # type: ignore[arg-type]
