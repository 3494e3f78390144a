"""Networks that read entries several times: their bounds against the exact maximum, in fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.errors import BoundError
from surebound.numerics import Soundness

METHODS = ("interval", "zonotope", "symbolic", "crown-ibp", "crown", "alpha-crown")
SPECS = 3


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Repeats(nn.Module):
    """Linear in its input, through one operator."""

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        return self.read(x).flatten(1)


AFTER, BEFORE, TABLE = numbers(4, 6, 5), numbers(4, 5, 6), numbers(30, 5)

#: The shape of one input, and the operator.
NETS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "unfold": ((24,), lambda x: x.unfold(1, 16, 1)),
    "expand": ((1, 5), lambda x: x.expand(-1, 40, -1)),
    "several matrices": ((1, 3, 6), lambda x: x @ AFTER.to(x.dtype)),
    "several matrices before": ((1, 6, 3), lambda x: BEFORE.to(x.dtype) @ x),
    "indices that meet": ((2, 3), lambda x: x[:, torch.zeros(16, 1).long(), torch.zeros(1, 16).long()]),
    "broadcast sum": ((1, 5), lambda x: x + 1000 * TABLE.to(x.dtype)),
    "broadcast product": ((1, 5), lambda x: x * TABLE.to(x.dtype)),
}


def exact_maximum(net: nn.Module, c: Tensor, lower: Tensor, upper: Tensor) -> list[Fraction]:
    """The largest c.z over a box (1, *in), where z is linear in x with coefficients that float64 has exactly."""
    flat = lower[0].numel()
    units = torch.cat([torch.zeros(1, flat), torch.eye(flat)]).reshape(-1, *lower.shape[1:])
    with torch.no_grad():
        values = net.double()(units.double())  # (1 + in, out)
    net.float()
    bias, columns = values[0], values[1:] - values[0]
    found = []
    for row in c.tolist():
        exact = [Fraction(v) for v in row]
        total = sum((a * Fraction(b) for a, b in zip(exact, bias.tolist(), strict=True)), Fraction(0))
        ends = zip(columns.tolist(), lower.flatten().tolist(), upper.flatten().tolist(), strict=True)
        for column, low, high in ends:
            slope = sum((a * Fraction(b) for a, b in zip(exact, column, strict=True)), Fraction(0))
            total += max(slope * Fraction(low), slope * Fraction(high))
        found.append(total)
    return found


@pytest.mark.parametrize("mode", ["real", "deployed"])
@pytest.mark.parametrize("name", NETS)
def test_no_bound_is_below_the_exact_maximum(name: str, mode: str) -> None:
    shape, read = NETS[name]
    net, x = Repeats(read), numbers(1, *shape, seed=1)
    region = sb.LinfBall(x, "1/1000")
    box = region.interval(Soundness(mode))
    outputs = net(x).shape[1]
    # Random rows, one number everywhere, and one that cancels but for rounding.
    c = torch.cat([numbers(SPECS, outputs, seed=2), torch.full((1, outputs), 0.7)])
    exact = exact_maximum(net, c, box.lower, box.upper)
    for method in METHODS:
        found = sb.worst_margins(net, region, spec=sb.LinearSpec(c), method=method, soundness=mode)[0]
        for bound, best in zip(found.tolist(), exact, strict=True):
            assert Fraction(bound) >= best, method


def test_products_that_many_outputs_share_are_never_proved_and_broken() -> None:
    """An adjoint that forgot the repetitions once read past its memory here."""
    torch.manual_seed(0)
    weight, last = torch.randn(4, 28, 8), nn.Linear(4 * 28 * 8, 10)

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = last

        def forward(self, x: Tensor) -> Tensor:
            return self.last((x @ weight).relu().flatten(1))  # x (B, 1, 28, 28)

    net, x = Heads().eval().requires_grad_(False), torch.rand(8, 1, 28, 28)
    labels, region = net(x).argmax(1), sb.LinfBall(x, "1/2", clip=(0, 1))
    broken = sb.attack(net, sb.LinfBall(x, "1/2", clip=(0, 1)), labels, sb.attacks.PGD(steps=10, restarts=1)).success
    assert bool(broken.any())
    for method in ("interval", "crown-ibp", "crown"):
        margins = sb.worst_margins(net, region, labels, method=method)
        assert bool((margins.abs() < 1e4).all())
        assert not bool(((margins <= 0).all(1) & broken).any())


class Moves(nn.Module):
    """The examples' axis is not the first one on the way, or examples are joined."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        if self.kind == "turned":
            return self.last(h.t().relu().t())
        return self.last(h - h.mean(0, keepdim=True))


@pytest.mark.parametrize("kind", ["turned", "joined"])
@pytest.mark.parametrize("method", METHODS)
def test_axes_that_are_not_the_examples(kind: str, method: str) -> None:
    """Six examples of six features, so that shapes alone do not give it away."""
    torch.manual_seed(1)
    net, x, labels = Moves(kind).eval().requires_grad_(False), torch.rand(6, 6), torch.arange(6) % 3
    region = sb.LinfBall(x, "1/10")
    if method != "interval":
        with pytest.raises(BoundError, match=r"first axis is not that of the examples[\s\S]*method='interval'"):
            sb.worst_margins(net, region, labels, method=method)
        return
    margins, box = sb.worst_margins(net, region, labels), region.interval(Soundness.DEPLOYED)
    for seed in range(100):
        t = torch.rand(6, 6, generator=torch.Generator().manual_seed(seed)).round()
        z = net(box.lower + (box.upper - box.lower) * t)
        assert bool((z - z.gather(1, labels.unsqueeze(1)) <= margins).all())


@pytest.mark.parametrize("method", METHODS)
def test_examples_taken_apart_and_put_together(method: str) -> None:
    """(B, 2, 6) as (2 B, 6): intervals do it, linear bounds say that they do not."""
    torch.manual_seed(2)

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 4), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x.reshape(-1, 6)).reshape(x.shape[0], 8))

    net, x, labels = Parts().eval().requires_grad_(False), torch.rand(3, 2, 6), torch.arange(3)
    region = sb.LinfBall(x, "1/10")
    if method != "interval":
        with pytest.raises(BoundError, match="use method='interval'"):  # 3 examples and 6 rows
            sb.worst_margins(net, region, labels, method=method)
        return
    margins = sb.worst_margins(net, region, labels)
    z = net(x)
    assert bool((z - z.gather(1, labels.unsqueeze(1)) <= margins).all())


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("kind", ["turned", "joined", "apart"])
def test_a_fixed_batch_size_does_not_hide_that_examples_meet(kind: str, method: str) -> None:
    """Three examples of three features, and a batch size of three that is written into the network."""
    torch.manual_seed(3)

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).view(3, 3).sigmoid()
            if kind == "turned":
                return self.last(h.t().tanh().t())
            return self.last(h - h.mean(0, keepdim=True)) if kind == "joined" else self.last(h)

    net, x, labels = Fixed().eval().requires_grad_(False), torch.rand(3, 3), torch.arange(3)
    region = sb.LinfBall(x, "1/10")
    if kind == "apart":
        margins, z = sb.worst_margins(net, region, labels, method=method), net(x)
        assert bool((z - z.gather(1, labels.unsqueeze(1)) <= margins).all())
        return
    with pytest.raises(BoundError, match="not that of the examples, or examples meet"):
        sb.worst_margins(net, region, labels, method=method)


MIXES: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "cumsum": lambda x: x.cumsum(0),
    "sum with another": lambda x: x + x.flip(0),
    "maximum with another": lambda x: torch.maximum(x, x.flip(0)),
    "product with another": lambda x: x * x.flip(0),
    "off between 0 and 1": lambda x: torch.relu(x + torch.tensor([-1.5, -4.0])).flip(0),
    "weight 0": lambda x: x + torch.zeros(1) * x.flip(0),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MIXES)
def test_examples_that_meet_in_values_of_the_right_shape(name: str, method: str) -> None:
    class Mixes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return MIXES[name](x)

    net, spec = Mixes().eval(), sb.LinearSpec(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    x = torch.tensor([[0.0, 0.0], [5.0, 0.0], [7.0, 1.0]])
    region = sb.LinfBall(x, "1/10")
    if method != "interval":
        with pytest.raises(BoundError, match="or examples meet"):
            sb.worst_margins(net, region, spec=spec, method=method)
        return
    margins, box = sb.worst_margins(net, region, spec=spec), region.interval(Soundness.DEPLOYED)
    for seed in range(50):
        t = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).round()
        z = net(box.lower + (box.upper - box.lower) * t)
        assert bool((z @ spec.c.t() <= margins).all())


@pytest.mark.parametrize("mode", ["real", "deployed"])
def test_large_biases_do_not_round_the_coefficients_of_forward_domains(mode: str) -> None:
    net = nn.Linear(1, 2).double().requires_grad_(False)
    net.weight.data, net.bias.data = (
        torch.tensor([[1.23456e-6], [0.0]]).double(),
        torch.tensor([1e6, 0.0]).double(),
    )
    x = torch.tensor([[1e6]]).double()
    exact = Fraction(float(net.weight[0, 0])) * Fraction(float(x)) + Fraction(float(net.bias[0]))
    spec = sb.LinearSpec(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double())
    for method in METHODS:
        upper, lower = sb.worst_margins(net, sb.Box(x, x), spec=spec, method=method, soundness=mode)[0].tolist()
        assert -Fraction(lower) <= exact <= Fraction(upper), method


def test_interpolated_values_in_forward_domains() -> None:
    """What uncertain positions cost is no sum over entries: the domains take such values by their intervals."""

    class Interpolates(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = nn.functional.interpolate(torch.exp(x), size=3, mode="linear", align_corners=True)
            z = y.sum(2) / 3 - 0.2 * x.sum(2)
            return torch.cat([z, z * 0], 1)

    lower, net = torch.full((1, 1, 2), -10.0), Interpolates().eval()
    for method in METHODS:
        spec = sb.LinearSpec(torch.tensor([[1.0, 0.0]]))
        found = sb.worst_margins(net, sb.Box(lower, lower + 10), spec=spec, method=method)
        for seed in range(50):
            t = torch.rand(1, 1, 2, generator=torch.Generator().manual_seed(seed)).round()
            assert float(net(lower + 10 * t)[0, 0]) <= float(found), method
