"""Bounds of a reduced network under signs, made anew: they hold of the executions with these signs, and fit them."""

from __future__ import annotations

import itertools
from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn

from surebound.bounds.reduced.anew import Inner, anew
from surebound.bounds.reduced.demands import CASE, Demands, demands
from surebound.bounds.reduced.influence import influence
from surebound.bounds.reduced.inner import improved_bounds, plain
from surebound.bounds.reduced.narrowing import folded, with_sign
from surebound.bounds.reduced.network import Reduced
from surebound.bounds.reduced.passes import Multipliers, Passes, bounds_of_rows
from surebound.bounds.reduced.reduction import reduce_network
from surebound.bounds.reduced.swing import Swing
from surebound.bounds.reduced.targets import TargetRow
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness

FIRST, LATER = Swing(steps=8), Swing(steps=3, rate=0.15)
MODES = [Soundness.REAL, Soundness.DEPLOYED]


@lru_cache
def reduction(mode: Soundness, sizes: tuple[int, ...] = (4, 10, 10, 8, 3)) -> tuple[nn.Sequential, Reduced]:
    torch.manual_seed(3)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    net, x = nn.Sequential(*layers[:-1]).eval().requires_grad_(False), torch.full((1, sizes[0]), 0.5)
    for layer in net[::2]:
        layer.weight.mul_(1.7)
    box = Interval(x - 0.5, x + 0.5)
    return net, reduce_network(program_of(net, x), box, torch.eye(sizes[-1]), mode)


def points(reduced: Reduced, count: int = 4000) -> Tensor:
    t = torch.rand(count, len(reduced.lower), generator=torch.Generator().manual_seed(1))
    t[: count // 2] = t[: count // 2].round()
    return reduced.lower + t * (reduced.upper - reduced.lower)


def inside(net: nn.Sequential, reduced: Reduced, x: Tensor) -> list[Tensor]:
    """Return what the network itself computes before its ReLUs: (N, U) of each layer of a reduced one."""
    found = []
    for layer in net:
        if isinstance(layer, nn.ReLU):
            found.append(x)
        x = layer(x)
    return [z[:, layer.place] for z, layer in zip(found, reduced.layers, strict=True)]


def chain(reduced: Reduced, signs: dict[int, int]) -> list[tuple[Reduced, dict[str, Inner]]]:
    """Fix signs of units (of the network as it is at first) one by one; each network is bounded from the last."""
    found = [anew(reduced, {}, FIRST, LATER)]
    for unit, sign in signs.items():
        known, inner = found[-1]
        found.append(anew(with_sign(known, unit, sign), inner, FIRST, LATER))
    return found


CHOSEN = [(0,), (3,), (0, 4), (2, 12), (1, 3, 14), (5, 0, 11, 20)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("units", CHOSEN)
def test_bounds_hold_of_every_execution_with_the_signs(mode: Soundness, units: tuple[int, ...]) -> None:
    net, reduced = reduction(mode)
    x, slack = points(reduced), 1e-5 if mode is Soundness.REAL else 0.0  # there rounding is nobody's
    z = torch.cat(inside(net, reduced, x), 1)
    signs = {unit: int(z[3000, unit].sign()) for unit in units}  # those of one execution
    have = torch.stack([z[:, unit] * sign >= 0 for unit, sign in signs.items()]).all(0)
    assert int(have.sum()) >= 10, "some executions have them"
    for part, _ in chain(reduced, signs)[-1:]:
        assert int((part.signs != 0).sum()) == len(signs)
        for own, layer in zip(inside(net, reduced, x[have]), part.layers, strict=True):
            assert bool((own >= layer.lower - slack).all()) and bool((own <= layer.upper + slack).all())
        for each in (part, folded(part)):
            assert torch.equal(each.signs[each.signs != 0], part.signs[part.signs != 0])
            bounds, better = bounds_of_rows(each), improved_bounds(each, plain(each), FIRST, 1 << 20)[0]
            for found in (bounds, better):
                y = net(x[have])
                assert bool((y <= found.upper + slack).all()) and bool((y >= found.lower - slack).all())


def test_bounds_are_no_looser_and_signs_tighten_them() -> None:
    _, reduced = reduction(Soundness.DEPLOYED)
    networks = [reduced, *(part for part, _ in chain(reduced, {0: 1, 4: -1}))]
    widths = []
    for old, new in itertools.pairwise(networks):
        for a, b in zip(old.layers, new.layers, strict=True):
            assert bool((b.lower >= a.lower).all()) and bool((b.upper <= a.upper).all())
    for each in networks:
        widths.append(float(sum((layer.upper - layer.lower).sum() for layer in each.layers[1:])))
    assert widths[3] < 0.95 * widths[2] < 0.95 * widths[1] < widths[0]


def test_multipliers_of_signs_cut_off_what_has_others() -> None:
    """y = relu(x0 - x1) reads nothing of relu(x0 + x1): that x0 + x1 <= 0 enters by its multiplier alone."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).eval().requires_grad_(False)
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
        net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
        net[2].bias.zero_()
    box = Interval(torch.tensor([[-1.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    reduced = reduce_network(program_of(net, box.lower), box, torch.tensor([[1.0, 0.0]]), Soundness.REAL)
    free = float(improved_bounds(reduced, plain(reduced), Swing(steps=40), 1 << 20)[0].upper)
    part = with_sign(reduced, 0, -1)  # x0 <= -x1 <= 0
    held = float(improved_bounds(part, plain(part), Swing(steps=40, decay=0.95), 1 << 20)[0].upper)
    assert abs(free - 1) < 0.01 and 2 / 3 <= held < 2 / 3 + 0.01  # the line above: (z + 2) / 3


def columns(net: nn.Sequential, reduced: Reduced, x: Tensor) -> Tensor:
    """Return the input and the unstable ReLUs' outputs (N, V) as the network itself computes them."""
    return torch.cat([x, *(z.relu() for z in inside(net, reduced, x))], 1).double()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("units", [(), *CHOSEN])
def test_what_is_demanded_holds_of_executions_and_so_do_bounds_from_it(mode: Soundness, units: tuple[int, ...]) -> None:
    """The last output is asked to be > 0, as far above most executions as a tenth of them are, under some signs."""
    net, reduced = reduction(mode)
    x, slack = points(reduced), 1e-5 if mode is Soundness.REAL else 0.0
    z, y = torch.cat(inside(net, reduced, x), 1), net(x)[:, 2]
    part = reduced
    for unit in units:
        part = with_sign(part, unit, int(z[3000, unit].sign()))
    have = (z * part.signs >= 0).all(1)
    least = float(y[have].sort().values[-max(2, int(have.sum()) // 10)])
    have &= y > least
    row = TargetRow(part.outputs.up[2:].double(), part.outputs.up_offset[2:] - least, None)
    alphas = torch.cat([layer.slope for layer in part.layers]).unsqueeze(0)
    asked = demands(part, row, Multipliers(part.signs.unsqueeze(0), alphas, torch.zeros_like(alphas)))
    v, met = columns(net, reduced, x), 0
    for each in asked:
        assert each.sources.count(CASE) == 1 and len(each) == len(each.a) <= 1 + len(units)
        values = v[:, : each.a.shape[1]] @ each.a.t() + each.offset
        assert bool((values[have] >= -slack).all())
        met += int((values < 0).any(1).sum())
    assert met, "others break some"
    found, inner = anew(part, {}, FIRST, LATER, asked)
    again, _ = anew(found, inner, LATER, LATER, demands(found, row, None))
    for bounded in (found, again):
        for own, layer in zip(inside(net, reduced, x[have]), bounded.layers, strict=True):
            assert bool((own >= layer.lower - slack).all()) and bool((own <= layer.upper + slack).all())
    plain_, _ = anew(part, {}, FIRST, LATER, [Demands((), each.a[:0], each.offset[:0]) for each in asked])
    assert sum(float((b.upper - b.lower).sum() - (a.upper - a.lower).sum()) for a, b in zip(
        found.layers, plain_.layers, strict=True)) > 0  # fmt: skip


def test_demands_reach_units_beside_and_before_those_that_make_them() -> None:
    """x0 + x1 <= 0, where x1 >= 0, leaves nothing of x0 - x1 > 0, a unit of the same layer."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).eval().requires_grad_(False)
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
        net[0].bias.zero_()
    box = Interval(torch.tensor([[-1.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    reduced = reduce_network(program_of(net, box.lower), box, torch.ones(1, 1), Soundness.REAL)
    found, _ = anew(with_sign(reduced, 0, -1), {}, Swing(steps=40, decay=0.9), LATER)
    assert 1 <= float(reduced.layers[0].upper[1]) < 1.001 and -1e-6 <= float(found.layers[0].upper[1]) < 0.02


def test_all_patterns_of_signs_together_are_exact() -> None:
    """The largest bound over all patterns is the maximum, found on a grid; and no pattern's bound is below its own."""
    net, reduced = reduction(Soundness.REAL, (2, 3, 2, 1))
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 201)] * 2)
    x = reduced.lower + grid * (reduced.upper - reduced.lower)
    z, y = torch.cat(inside(net, reduced, x), 1), net(x)[:, 0]
    largest = -torch.inf
    for signs in itertools.product((-1, 1), repeat=reduced.unstable):
        part, inner = reduced, dict[str, Inner]()
        for unit, sign in enumerate(signs):
            part, inner = anew(with_sign(part, unit, sign), inner, FIRST, LATER)
        bound = float(improved_bounds(part, plain(part), Swing(steps=60, decay=0.95), 1 << 20)[0].upper)
        have = (z * torch.tensor(signs) >= 0).all(1)
        if bool(have.any()):
            assert float(y[have].max()) <= bound
            largest = max(largest, bound)
    assert float(y.max()) <= largest < float(y.max()) + 0.15 * float(y.max() - y.min())


def test_multipliers_stay_with_the_units_that_they_belong_to() -> None:
    _, reduced = reduction(Soundness.DEPLOYED)
    part, inner = anew(reduced, {}, FIRST, LATER)
    small = folded(with_sign(part, 1, 1))
    for number, layer in enumerate(small.layers):
        if not number:
            continue
        known, before = inner[layer.name], small.layers[:number]
        names = [(each.name, int(p)) for each in before for p in each.place]
        old = [(name, int(p)) for name, places in known.before for p in places]
        cut = Reduced(small.lower, small.upper, before, layer.rows)
        start = known.start(cut, layer.place)
        assert start.alphas.shape == (2 * len(layer), len(names))
        for end in (0, 1):
            for row, place in enumerate(layer.place):
                theirs = end * len(known.place) + known.place.tolist().index(int(place))
                for column, name in enumerate(names):
                    mine = end * len(layer) + row, column
                    assert start.alphas[mine] == known.m.alphas[theirs, old.index(name)]
                    assert start.betas[mine] == known.m.betas[theirs, old.index(name)]
        assert torch.equal(start.signs[0], cut.signs)


def test_influence_is_of_open_units_and_finds_the_one_behind_the_others() -> None:
    """One unit of the first layer feeds every unit of the second; the output reads these only."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)).eval()
    net.requires_grad_(False)
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(6))
        net[0].bias.fill_(0.0)
        net[2].weight.mul_(0.1)
        net[2].weight[:, 2] = torch.randn(12)
        net[2].bias.fill_(-0.2)
    box = Interval(-torch.ones(1, 6), torch.ones(1, 6))
    reduced = reduce_network(program_of(net, box.lower), box, torch.ones(1, 1), Soundness.REAL)

    def score(part: Reduced) -> Tensor:
        passes = Passes(part, torch.float64)
        alphas = torch.cat([layer.slope for layer in part.layers]).double().unsqueeze(0)
        m = Multipliers(part.signs.unsqueeze(0), alphas, torch.zeros_like(alphas))
        found = passes.pull(part.outputs.up.double(), part.outputs.up_offset, m)
        return influence(part, found.own)

    assert int(score(reduced).argmax()) == 2
    fixed = score(with_sign(reduced, 2, 1))
    assert float(fixed[2]) == 0 and bool((fixed[:2] > 0).all())
