"""Forward bounds in the few inputs that vary, under backward passes: sound, and never looser than without them."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from surebound.affine import AffineFunction
from surebound.bounds.constants import Constants
from surebound.bounds.forward import domain
from surebound.bounds.forward.domain import Forward
from surebound.bounds.forward.pair import Pair, PairDomain
from surebound.bounds.linear import entries, intermediate
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.margins import worst_margins
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.region import LinfBall
from tests.bounds.test_linear import tiny_net


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, 48), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(48, 4)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x).reshape(-1, 3, 4, 4))
        h = torch.relu(self.norm(self.inner(h)) + h)
        return self.last(torch.relu(self.inner(h)).flatten(1))


def nets() -> dict[str, nn.Module]:
    torch.manual_seed(3)
    conv = nn.Sequential(
        nn.Linear(3, 48), nn.Unflatten(1, (3, 4, 4)), nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1), nn.Sigmoid(), nn.Conv2d(4, 2, 3), nn.LeakyReLU(), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    found = {"conv": conv, "dense": tiny_net(1, (3, 20, 20, 20, 4)), "residual": Residual()}
    return {name: net.eval().requires_grad_(False) for name, net in found.items()}


def boxes(width: float) -> Interval:
    """Two boxes; in the first the second input does not vary, in the second all do."""
    center = torch.tensor([[0.1, -0.4, 0.3], [0.5, 0.2, -0.1]])
    radius = torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.5, 1.0]]) * width
    return Interval(center - radius, center + radius)


def relaxed(net: nn.Module, box: Interval, mode: Soundness, few: float, patch: pytest.MonkeyPatch) -> Relaxed:
    patch.setattr(intermediate, "FEW", few)
    with torch.no_grad():
        return relax(program_of(net, box.lower), box, mode, own=True)


class FewerAxes(nn.Module):
    """Adds a value of fewer axes: (1, 3, 16) and (1, 16), of which the batch axis of one lines up with the three."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 48), nn.Linear(48, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).reshape(-1, 3, 16)
        return self.last(torch.maximum(h, (h + h[:, 0]).relu()).flatten(1))


@pytest.mark.parametrize("method", ["zonotope", "symbolic", "hybrid", "crown"])
def test_operands_of_fewer_axes(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their terms were taken for examples: zonotopes did not fit, and others refused the network."""
    monkeypatch.setattr(intermediate, "FEW", 1.0)
    torch.manual_seed(0)
    net, ball = FewerAxes().requires_grad_(False), LinfBall(torch.rand(1, 2), "1/5")
    found, box = worst_margins(net, ball, torch.tensor([0]), method=method), ball.interval()
    z = torch.cat([net(box.lower + torch.rand(1, 2) * 2 * box.radius) for _ in range(50)])
    assert found.shape == (1, 2) and bool((z[:, 1] - z[:, 0] <= found[0, 1]).all())


@pytest.mark.parametrize("mode", list(Soundness))
@pytest.mark.parametrize("name", ["conv", "dense", "residual"])
def test_values_lie_in_bounds_that_are_no_looser(name: str, mode: Soundness, monkeypatch: pytest.MonkeyPatch) -> None:
    net, generator = nets()[name], torch.Generator().manual_seed(0)
    for width in (0.02, 0.3):
        box = boxes(width)
        found, without = (relaxed(net, box, mode, few, monkeypatch) for few in (torch.inf, -1.0))
        share = torch.rand(64, 1, 3, generator=generator)
        points = (
            (box.lower + share * (box.upper - box.lower))
            .flatten(0, 1)
            .clamp(box.lower.repeat(64, 1), box.upper.repeat(64, 1))
        )
        output = program_of(net, box.lower).graph.output
        z, (low, high) = net(points), (found.bounds[output].lower, found.bounds[output].upper)
        slack = 1e-5 if mode is not Soundness.DEPLOYED else 0.0
        assert bool((z >= low.repeat(64, 1) - slack).all() and (z <= high.repeat(64, 1) + slack).all())
        # Units that are stable either way need no bounds as tight. Tighter bounds of others may choose other slopes.
        assert int(free_entries(found).sum()) <= int(free_entries(without).sum())
        rows = torch.cat([torch.eye(4), -torch.eye(4)]).expand(2, -1, -1)
        upper = [each.evaluate(rows, torch.zeros(2, 8)).upper for each in (found, without)]
        assert float((upper[0] - upper[1]).mean()) <= 0.005 * float(upper[1].abs().mean())


def free_entries(relaxed: Relaxed) -> Tensor:
    """Mark the entries of activations whose sign is open, all in one row."""
    return torch.cat([relaxed.steps[name].free.flatten() for name in relaxed.activations])


def test_fewer_backward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One activation and the layer after it need none; what forward bounds show to be stable needs none either."""
    net, box, rows = nets()["dense"], boxes(0.3), dict[float, list[int]]()
    real = entries.entries
    for few in (torch.inf, -1.0):
        rows[few] = []

        def counted(relaxed: Relaxed, source: str, where: Tensor, block: int, few: float = few) -> Interval:
            rows[few].append(int(where.sum()))
            return real(relaxed, source, where, block)

        monkeypatch.setattr(intermediate, "entries", counted)
        relaxed(net, box, Soundness.REAL, few, monkeypatch)
    assert len(rows[-1.0]) == 2  # the first layer's bounds are exact anyway
    assert len(rows[torch.inf]) == 1
    assert sum(rows[torch.inf]) < 0.7 * sum(rows[-1.0])


def output_pair(net: nn.Module, box: Interval) -> Pair:
    constants = Constants(program_of(net, box.lower))
    return Forward(constants, Soundness.REAL, PairDomain(box, "adaptive")).run(box)


def exactly(side: AffineFunction, x: Tensor, k: int) -> Fraction:
    """The function of the output k at an input x (n,), in fractions."""
    terms = zip(side.coefficients[:, 0, k].tolist(), x.double().tolist(), strict=True)
    return Fraction(float(side.offset[0, k])) + sum(Fraction(a) * Fraction(v) for a, v in terms)


def affine_outputs(net: nn.Sequential, x: Tensor) -> list[Fraction]:
    """The outputs of linear layers, one after the other, at an input x (n,), in fractions."""
    values = [Fraction(v) for v in x.double().tolist()]
    for layer in net:
        rows = zip(layer.weight.double().tolist(), layer.bias.double().tolist(), strict=True)
        values = [sum((Fraction(a) * v for a, v in zip(row, values, strict=True)), Fraction(b)) for row, b in rows]
    return values


def contradicted(net: nn.Sequential, seed: int) -> bool:
    """Is an exact output outside of the pair's functions at a corner of a box?"""
    x = torch.randn(1, 3, generator=torch.Generator().manual_seed(seed))
    box = Interval(x, x + 2.0**-20)
    pair = output_pair(net, box)
    for corner in (box.lower[0], box.upper[0]):
        for k, exact in enumerate(affine_outputs(net, corner)):
            if not exactly(pair.lower, corner, k) <= exact <= exactly(pair.upper, corner, k):
                return True
    return False


def test_functions_hold_in_exact_arithmetic_and_without_rounding_terms_they_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 40), nn.Linear(40, 4)).requires_grad_(False)
    assert not any(contradicted(net, seed) for seed in range(5))
    real = domain._map
    unpaid = {"rate": 0.0, "own": torch.zeros(())}
    monkeypatch.setattr(domain, "_map", lambda *given: dataclasses.replace(real(*given), **unpaid))
    assert any(contradicted(net, seed) for seed in range(5))


@pytest.mark.parametrize("method", ["symbolic", "crown", "raghunathan"])
def test_inputs_of_one_number(method: str) -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(1, 70), nn.Linear(70, 2)

    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = first, last

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.first(x.unsqueeze(1))))

    x, labels = torch.tensor([0.3, 0.4]), torch.tensor([0, 1])
    found = worst_margins(Scalar().requires_grad_(False), LinfBall(x, "1/2"), labels, method=method)
    column = nn.Sequential(first, nn.ReLU(), last).requires_grad_(False)
    same = worst_margins(column, LinfBall(x.unsqueeze(1), "1/2"), labels, method=method)
    torch.testing.assert_close(found, same)
