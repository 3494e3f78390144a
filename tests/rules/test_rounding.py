"""Rounding: sums in any order, exact rational results, and the traps that a plain float32 bound falls into."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Context, find
from surebound.rules.owned import Owned
from tests.rules.cases import CASES, Case
from tests.rules.harness import bounds, generator
from tests.rules.test_affine import _matrix

REAL, DEPLOYED = Soundness.REAL, Soundness.DEPLOYED
FLOAT = torch.float32

#: Operators that are sums of products with their float32 constants, so that their matrix is exact.
SUMS = [
    case
    for case in CASES
    if case.op.split(".")[0] in ("linear", "mm", "matmul", "mv", "conv1d", "conv2d", "conv3d", "sum", "cumsum", "add")
    or case.op.startswith(("conv_transpose", "addmm"))
    if len(case.shapes) == 1 and case.rowwise and "padding" not in case.op
    if all(torch.equal(part.to(FLOAT).double(), part) for part in _matrix(case))
]
sums = pytest.mark.parametrize("case", SUMS, ids=[f"{case.op}-{i}" for i, case in enumerate(SUMS)])


def _sum_in_order(terms: Tensor, order: Tensor) -> Tensor:
    """Sequential float32 summation of terms (n,) in the given order: every partial sum is rounded."""
    total = torch.zeros((), dtype=FLOAT)
    for i in order.tolist():
        total = total + terms[i]
    return total


def _wild_box(case: Case, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Entries of very different sizes, so that orders of summation matter; points and intervals."""
    g = generator(seed)
    shape = (1, *case.shapes[0][1:])
    sizes = 10.0 ** (torch.rand(shape, generator=g) * 12 - 6)
    low = torch.randn(shape, generator=g) * sizes
    if case.op.startswith(("sum", "cumsum")) and seed > 2:
        low = low.abs()  # the rules treat sums of numbers that are not negative apart
    return [(low, low + sizes * torch.randint(0, 2, shape, generator=g))]


@pytest.mark.parametrize("owned", [False, True], ids=["", "in-place"])
@sums
def test_deployed_holds_every_order_of_summation(case: Case, owned: bool) -> None:
    matrix, constant = _matrix(case)
    weights, bias = matrix.to(FLOAT), constant.to(FLOAT)
    g = generator(5)
    for attempt in range(4):
        box = _wild_box(case, attempt + 1)
        found = bounds(case, box, DEPLOYED, FLOAT, owned)[0]
        low, high = found.lower.flatten(), found.upper.flatten()
        t = torch.rand(box[0][0].shape, generator=g).round() if attempt % 2 else 0.5
        x = (box[0][0] + (box[0][1] - box[0][0]) * t).flatten()
        for row in torch.randint(0, len(bias), (6,), generator=g).tolist():
            used = weights[row] != 0
            terms = torch.cat([weights[row][used] * x[used], bias[row : row + 1]])
            value = _sum_in_order(terms, torch.randperm(len(terms), generator=g))
            assert low[row] <= value <= high[row]


@pytest.mark.parametrize("owned", [False, True], ids=["", "in-place"])
@sums
def test_real_holds_exact_rational_results(case: Case, owned: bool) -> None:
    matrix, constant = _matrix(case)
    for end, seed in itertools.product((0, 1), (2, 3)):
        box = _wild_box(case, seed)
        found = bounds(case, box, REAL, FLOAT, owned)[0]
        low, high = found.lower.flatten().tolist(), found.upper.flatten().tolist()
        x = [Fraction(v) for v in box[0][end].flatten().tolist()]
        for row in range(0, len(constant), max(1, len(constant) // 5)):
            exact = Fraction(float(constant[row]))
            exact += sum(Fraction(w) * v for w, v in zip(matrix[row].tolist(), x, strict=True) if w)
            assert Fraction(low[row]) <= exact <= Fraction(high[row])


class _Cancelling(nn.Module):
    """One neuron whose sum is 1 or 0 according to the order: 2^24 + 1 - 2^24."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1, bias=False)
        self.layer.weight.data = torch.tensor([[2.0**24, 1.0, -(2.0**24)]])

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_deployed_bites() -> None:
    """Plain float32 interval bounds exclude what another order of summation computes; deployed ones do not."""
    network, x = _Cancelling(), torch.ones(1, 3)
    terms = network.layer.weight[0].detach() * x[0]
    orders = [torch.tensor(p) for p in ((0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 0, 2))]
    computed = {float(_sum_in_order(terms, order)) for order in orders}
    assert computed == {0.0, 1.0}
    plain = sb.interval_bounds(network, sb.Box(x, x), soundness="none").detach()
    assert any(not float(plain.lower) <= value <= float(plain.upper) for value in computed)
    sound = sb.interval_bounds(network, sb.Box(x, x), soundness="deployed").detach()
    assert all(float(sound.lower) <= value <= float(sound.upper) for value in computed)
    real = sb.interval_bounds(network, sb.Box(x, x), soundness="real").detach()
    assert float(real.lower) <= 1.0 <= float(real.upper)  # exact arithmetic says 1


def test_deployed_bites_on_a_verdict() -> None:
    """A two-class network: plain bounds prove the label, an order of summation misclassifies, deployed refuses."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            g = generator(3)
            self.first = nn.Linear(64, 1)
            weight = torch.randn(64, generator=g) * 1000
            self.first.weight.data = torch.cat([weight[:32], -weight[:32]]).reshape(1, 64)
            self.last = nn.Linear(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x))

    network, x, g = Net(), torch.full((1, 64), 1.1), generator(4)
    terms = network.first.weight[0].detach() * x[0]
    results = [float(_sum_in_order(terms, torch.randperm(64, generator=g))) for _ in range(200)]
    lowest, highest = min(results), max(results)
    assert lowest < highest
    # Class 0 wins on our side of a threshold between what our own order and another one compute.
    network.first.bias.data.zero_()
    ours = float(sb.interval_bounds(network.first, sb.Box(x, x), soundness="none").lower.detach())
    other = lowest if ours > lowest else highest
    sign, threshold = math.copysign(1.0, ours - other), (ours + other) / 2
    network.last.weight.data = torch.tensor([[sign], [0.0]])
    network.last.bias.data = torch.tensor([-sign * threshold, 0.0])
    label = torch.tensor([0])
    plain = sb.worst_margins(network, sb.Box(x, x), label, soundness="none")
    assert bool((plain <= 0).all())  # "proved"
    assert sign * (other - threshold) < 0  # that execution says class 1
    sound = sb.worst_margins(network, sb.Box(x, x), label, soundness="deployed")
    assert not bool((sound <= 0).all())


def test_a_converted_centre_is_not_exact() -> None:
    """An activation read by a layer and by a skip connection: the rounding of its centre must not be lost."""
    rule = find("aten.add.Tensor")
    assert rule is not None
    x = Interval(torch.tensor([1e6]), torch.tensor([1e6 + 0.0625]))
    assert float(x.center) + float(x.radius) < 1e6 + 0.0625  # the converted form does not hold the upper end
    total = rule.interval(Context(DEPLOYED), x, torch.tensor([-1e6]))
    assert float(total.lower) <= 0.0 and float(total.upper) >= 0.0625


@pytest.mark.parametrize("mode", [REAL, DEPLOYED])
def test_overflow_is_no_information(mode: Soundness) -> None:
    """Partial sums beyond the largest number: the true sum is 0, a plain bound says infinity for sure."""
    linear, sigmoid = find("aten.linear.default"), find("aten.sigmoid.default")
    assert linear is not None and sigmoid is not None
    x, plain = Interval(torch.ones(1, 4), torch.ones(1, 4)), []
    for row in set(itertools.permutations([3e38, 3e38, -3e38, -3e38])):
        weight = torch.tensor([row])
        total = linear.interval(Context(mode), x, weight)
        found = sigmoid.interval(Context(mode), total)
        for bound, value in ((total, 0.0), (found, 0.5)):
            assert not float(bound.lower) > value and not float(bound.upper) < value
        plain.append(float(linear.interval(Context(Soundness.NONE), x, weight).lower))
    # In whatever order a library sums, some pair that it adds first is 3e38 twice.
    assert not all(map(math.isfinite, plain))


def test_subnormal_numbers_may_be_flushed() -> None:
    """Hardware that reads 1e-40 as 0 computes 0 where gradual underflow computes 1e-2: both are inside."""
    network = nn.Linear(1, 1, bias=False).requires_grad_(False)
    for weight, x in ((1e38, 1e-40), (1e-40, 1e38)):
        network.weight.data.fill_(weight)
        box = sb.Box(torch.full((1, 1), x), torch.full((1, 1), x))
        found = sb.interval_bounds(network, box)
        assert float(found.lower) <= 0.0 and float(found.upper) >= weight * x
    product = find("aten.mul.Tensor")
    root = find("aten.sqrt.default")
    assert product is not None and root is not None
    small = Interval(torch.tensor([1e-40]), torch.tensor([1e-40]))
    for factor in (torch.tensor([1e38]), 1e38):
        found = product.interval(Context(DEPLOYED), small, factor)
        assert float(found.lower) <= 0.0 and float(found.upper) >= 1e-2
    flushed = root.interval(Context(DEPLOYED), small)
    assert float(flushed.lower) == 0.0 and float(flushed.upper) >= math.sqrt(float(torch.tensor(1e-40)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_deep_networks_in_both_dtypes(dtype: torch.dtype) -> None:
    """Twenty layers: what float32 computes in two orders, and float64 as exact, stay inside."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(10):
        layers += [nn.Linear(16, 16), nn.ReLU()]
    network = nn.Sequential(*layers).to(dtype)
    x = torch.randn(4, 16, dtype=dtype)
    found = sb.interval_bounds(network, sb.Box(x, x))
    reverse = torch.arange(15, -1, -1)
    with torch.no_grad():
        y = z = x
        for layer in layers:
            if isinstance(layer, nn.Linear):
                y = layer(y)
                # The same layer with its inputs in reverse order.
                z = nn.functional.linear(z[:, reverse], layer.weight[:, reverse], layer.bias)
            else:
                y, z = y.relu(), z.relu()
        exact = network.double()(x.double())
    assert bool(found.contains(y).all()) and bool(found.contains(z).all())
    assert bool(((found.lower.double() <= exact) & (exact <= found.upper.double())).all())


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("mode", [Soundness.REAL, Soundness.DEPLOYED])
def test_large_matrices_row_by_row(monkeypatch: pytest.MonkeyPatch, mode: Soundness, owned: bool) -> None:
    """A matrix whose absolute values are made a few rows at a time: exact ends inside, as tight as in one piece."""
    draw = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(5, 4, generator=draw), torch.randn(5, generator=draw)
    weight[3, 2] = 1e-40  # subnormal, in another block than the first
    center, radius = torch.randn(3, 4, generator=draw), torch.rand(3, 4, generator=draw)
    lower, upper = center - radius, center + radius
    rule = find("aten.linear.default")
    assert rule is not None

    def bound() -> Interval:
        box = Interval(lower.clone(), upper.clone())
        found = rule.interval(Context(mode), Owned.taking(box) if owned else box, weight, bias)
        assert isinstance(found, Interval)
        return found

    whole = bound()
    monkeypatch.setattr("surebound.rules.affine.BLOCK", 8)  # two rows
    parts = bound()
    assert torch.allclose(parts.upper, whole.upper, rtol=1e-6, atol=1e-6)
    assert torch.allclose(parts.lower, whole.lower, rtol=1e-6, atol=1e-6)
    for b, o in itertools.product(range(3), range(5)):
        row = [Fraction(v) for v in weight[o].tolist()]
        ends = [[Fraction(v) for v in side[b].tolist()] for side in (lower, upper)]
        most = sum(max(w * lo, w * hi) for w, lo, hi in zip(row, *ends, strict=True)) + Fraction(float(bias[o]))
        least = sum(min(w * lo, w * hi) for w, lo, hi in zip(row, *ends, strict=True)) + Fraction(float(bias[o]))
        assert Fraction(float(parts.lower[b, o])) <= least
        assert most <= Fraction(float(parts.upper[b, o]))


@pytest.mark.parametrize("size", [1811, 3001])
def test_positions_of_interpolated_values_are_rounded(size: int) -> None:
    """Between entries that alternate, a position's rounding is most of the error: exact results stay inside."""

    class Stretched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.interpolate(x, size, mode="linear", align_corners=True).flatten(1)

    x = torch.ones(1, 1, 997)
    x[..., ::2] = -1.0
    found = sb.interval_bounds(Stretched(), sb.LinfBall(x, 0))
    exact = Stretched()(x.double())
    assert bool(((found.lower.double() <= exact) & (exact <= found.upper.double())).all())
    assert float((Stretched()(x).double() - exact).abs().max()) > 1e-5  # what is paid for


def test_averages_by_a_negative_divisor_are_refused() -> None:
    """They fall where their inputs rise; the rule is one of weights >= 0."""

    class Averaged(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.avg_pool2d(x, 2, divisor_override=-3).flatten(1)

    with pytest.raises(BoundError, match="only positive divisors have a rule"):
        sb.interval_bounds(Averaged(), sb.LinfBall(torch.rand(1, 1, 4, 4), "1/10"))
