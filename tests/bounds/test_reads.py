"""Receptive fields: what the asked outputs do not read keeps interval bounds, and changes nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.constants import Constants
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.linear.reads import entries_read
from surebound.bounds.linear.steps import step_of
from surebound.graph import program_of
from surebound.graph.program import Program
from surebound.interval import Interval
from surebound.numerics import Soundness


class Detector(nn.Module):
    """Fully convolutional, with a sum of two paths; the outputs are the cells of a small image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.side = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 1, stride=2)
        self.down, self.last = nn.Conv2d(2, 2, 3, 2, 1), nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        h = F.relu(self.down(h) + self.side(h))
        return F.avg_pool2d(self.last(h), 2).flatten(1)


@pytest.fixture
def asked() -> tuple[Program, Interval, Tensor]:
    torch.manual_seed(0)
    net = Detector().eval().requires_grad_(False)
    for name, value in net.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(value)  # so that many units are unstable
    x = torch.rand(2, 1, 16, 16)
    rows = torch.zeros(2, 2, 16)
    rows[:, 0, 0], rows[0, 1, 0], rows[0, 1, 5] = 1.0, 1.0, -2.0
    return program_of(net, x), sb.LinfBall(x, "1/4").interval(), rows


def _jacobian(program: Program, name: str, value: Tensor) -> Tensor:
    """Return d outputs / d value, the rest of the network as it is: (K, *value)."""

    def rest(v: Tensor) -> Tensor:
        env = {**program.parameters(), program.graph.input: torch.zeros(1, 1, 16, 16), name: v}
        for node in program.graph.nodes:
            if node.name not in env:
                env[node.name] = node.run(env)
        out: Tensor = env[program.graph.output][0]
        return out

    return torch.autograd.functional.jacobian(rest, value)[:, 0]  # type: ignore[no-untyped-call, no-any-return]


def test_masks_hold_every_entry_with_an_influence(asked: tuple[Program, Interval, Tensor]) -> None:
    program, _, rows = asked
    masks = entries_read(Constants(program), rows)
    read = (rows != 0).flatten(0, 1).any(0)
    values = [node for node in program.graph.nodes if node.varies and node.name != program.graph.output]
    partial = 0
    for node in values:
        shape = (1, *(int(n or 1) for n in (program.graph.shape_of(node.name) or ())[1:]))
        seen = torch.zeros(shape, dtype=torch.bool)
        for seed in range(3):  # of every sign pattern that a few draws meet
            value = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3
            seen |= (_jacobian(program, node.name, value)[read] != 0).any(0)
        mask = masks.get(node.name, torch.ones(shape, dtype=torch.bool))
        assert not bool((seen & ~mask).any()), node.name
        partial += not bool(mask.all())
    assert partial == len(values), "every value has entries that two cells do not read"


@torch.no_grad()
@pytest.mark.parametrize("mode", [Soundness.NONE, Soundness.DEPLOYED])
def test_bounds_outside_the_mask_do_not_matter(asked: tuple[Program, Interval, Tensor], mode: Soundness) -> None:
    program, box, rows = asked
    d = torch.zeros(rows.shape[:2], dtype=torch.float64)
    full = relax(program, box, mode, own=True)
    some = relax(program, box, mode, own=True, rows=rows)
    assert some.read
    want, got = (each.evaluate(rows, d).upper for each in (full, some))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    kept = 0
    for name, mask in some.read.items():
        mine, theirs = some.bounds[name], full.bounds[name]
        inside = mask.expand(mine.shape)
        torch.testing.assert_close(mine.lower[inside], theirs.lower[inside], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(mine.upper[inside], theirs.upper[inside], rtol=1e-5, atol=1e-6)
        kept += int((mine.lower < theirs.lower - 1e-4)[~inside].sum())
    assert kept, "something was left at its interval bounds"
    # Bounds that are ten times as wide wherever nothing is read: the coefficients there are 0.
    bounds = dict(some.bounds)
    for name, mask in some.read.items():
        if name in (some.source(activation) for activation in some.activations):
            low, high = bounds[name].lower, bounds[name].upper
            bounds[name] = Interval(torch.where(mask, low, low - 10), torch.where(mask, high, high + 10))
    steps = dict(some.steps)
    for activation in some.activations:
        node = program.graph.by_name[activation]
        steps[activation] = step_of(some.constants, node, bounds, mode)
    other = dataclasses.replace(some, bounds=bounds, steps=steps)
    torch.testing.assert_close(other.evaluate(rows, d).upper, got, rtol=1e-6, atol=1e-6)


def test_everything_is_read_where_everything_is_asked(asked: tuple[Program, Interval, Tensor]) -> None:
    program, _, rows = asked
    assert entries_read(Constants(program), torch.ones_like(rows)) == {}


def test_margins_are_those_of_all_bounds(asked: tuple[Program, Interval, Tensor]) -> None:
    program, box, rows = asked
    region = sb.Box(box.lower, box.upper)
    one = sb.worst_margins(program, region, spec=sb.LinearSpec(rows), method="crown")
    everything = torch.cat([rows, torch.eye(16).expand(2, -1, -1)], 1)
    all_ = sb.worst_margins(program, region, spec=sb.LinearSpec(everything), method="crown")
    torch.testing.assert_close(one, all_[:, :2], rtol=1e-6, atol=1e-6)


def test_a_slice_of_nothing() -> None:
    class Emptied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(6, 1), nn.Linear(1, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x) * 2
            y[:, 1:].add_(y[:, :1])  # no column is left to write to
            found: Tensor = self.last(torch.relu(y))
            return found

    net, x = Emptied().requires_grad_(False), torch.rand(1, 6, generator=torch.Generator().manual_seed(1))
    labels = net(x).argmax(1)
    margins = sb.worst_margins(net, sb.LinfBall(x, "1/10"), labels, method="crown")
    for seed in range(20):
        z = net(x + 0.2 * (torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) - 0.5))
        assert bool((z - z.gather(1, labels.unsqueeze(1)) <= margins).all())
