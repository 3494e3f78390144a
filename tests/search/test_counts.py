"""Counts of bits: units that steps read are decided one by one, and no more than executions show is ever claimed."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from surebound.bounds.linear.intermediate import relax
from surebound.bounds.reduced.entry import reduce_entry
from surebound.bounds.reduced.passes import bounds_of_rows
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.region import Box
from surebound.search.jumps import decided_by_units
from surebound.search.specification import decide
from surebound.search.steps import jumping
from surebound.spec import Spec
from surebound.verdict import Status

SIDE = 6


class Counting(nn.Module):
    """Count the pixels whose first score is larger than the second; a skip connection, borders padded with zeros."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 2, 1)

    def scores(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        both = self.last(torch.relu(self.second(hidden)) + hidden)
        first, second = both[:, :1], both[:, 1:]
        apart: Tensor = first - second
        return apart

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.sign(self.scores(x))).sum((1, 2, 3)).unsqueeze(1)


def _asked(seed: int, eps: float = 0.1) -> tuple[Counting, Interval, Tensor]:
    """Return a network, a box, and executions in it: corners, random points, and steps towards every pixel's jump."""
    net = Counting(seed).requires_grad_(False)
    middle = torch.rand(1, 1, SIDE, SIDE)
    box = Interval(middle - eps, middle + eps)
    points = middle + eps * torch.cat([torch.rand(200, 1, SIDE, SIDE) * 2 - 1, torch.randn(400, 1, SIDE, SIDE).sign()])
    aimed = middle.expand(2 * SIDE * SIDE, -1, -1, -1).clone()
    sign = torch.tensor([1.0, -1.0]).repeat_interleave(SIDE * SIDE)
    for _ in range(6):
        aimed.requires_grad_()
        with torch.enable_grad():
            score = net.scores(aimed).flatten(1).gather(1, torch.arange(SIDE * SIDE).repeat(2).unsqueeze(1))[:, 0]
            (slope,) = torch.autograd.grad((sign * score).sum(), aimed)
        aimed = (aimed.detach() + eps / 2 * slope.sign()).clamp(box.lower, box.upper)
    return net, box, torch.cat([points, aimed])


@pytest.mark.parametrize("wide", [False, True])
@torch.no_grad()
def test_a_reduced_unit_bounds_its_executions_and_is_no_looser_than_crown(wide: bool) -> None:
    net, box, points = _asked(0)
    program = program_of(net, points)
    root = relax(program, box, Soundness.DEPLOYED, own=True)
    (step,) = jumping(program)
    source = root.constants.sources(step)[0]
    values = net.scores(points).flatten(1)
    for place in range(0, SIDE * SIDE, 7):
        for sign in (1, -1):
            reduced = reduce_entry(root.widened() if wide else root, source, place, sign)
            found = bounds_of_rows(reduced)
            signed = sign * values[:, place]
            assert float(found.lower) <= float(signed.min()) and float(signed.max()) <= float(found.upper)
            row = sign * torch.eye(SIDE * SIDE)[place].reshape(1, 1, 1, SIDE, SIDE)
            crown = root.upper(root.pull(source, row, torch.zeros(1, 1, dtype=torch.float64)))
            assert float(found.upper) == pytest.approx(float(crown), abs=1e-4)
            assert len(reduced.lower) <= 25  # what lies outside of the receptive field is left out


class Coarse(nn.Module):
    """Scores of pixels from two scales: an average of pixels goes through a convolution and is spread again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(3, 2, 2, 2), nn.Conv2d(5, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = torch.relu(self.first(x))
        coarse = self.up(torch.relu(self.second(nn.functional.avg_pool2d(fine, 2))))
        scores: Tensor = self.last(torch.cat([fine, coarse], 1))
        return torch.sign(scores).sum((1, 2, 3)).unsqueeze(1)


@torch.no_grad()
def test_a_unit_behind_a_transposed_convolution_reads_its_window_whatever_its_phase() -> None:
    side, eps = 24, 0.3
    net, middle = Coarse().requires_grad_(False), torch.rand(1, 1, side, side)
    program, box = program_of(net, middle), Interval(middle - eps, middle + eps)
    root = relax(program, box, Soundness.DEPLOYED, own=True)
    (step,) = jumping(program)
    source = root.constants.sources(step)[0]
    for place in (0, 1, side, side + 1, 10 * side + 12, 10 * side + 13, 11 * side + 12, side * side - 1):
        found = bounds_of_rows(reduce_entry(root.widened(), source, place, 1))
        row = torch.eye(side * side)[place].reshape(1, 1, 1, side, side)
        crown = root.widened().upper(root.pull(source, row, torch.zeros(1, 1, dtype=torch.float64)))
        assert float(found.upper) == pytest.approx(float(crown), abs=1e-4)
        assert len(reduce_entry(root.widened(), source, place, 1).lower) <= 64 < side * side


@pytest.mark.parametrize("seed", range(2))
@torch.no_grad()
def test_decided_units_bound_every_execution_s_count(seed: int) -> None:
    net, box, points = _asked(seed)
    program, counts = program_of(net, points), net(points)
    root = relax(program, box, Soundness.DEPLOYED, own=True)
    end = time.monotonic() + 10
    for settles in (lambda x: False, lambda x: bool((x.lower == x.upper).all()), lambda x: float(x.lower) > 0):
        found = decided_by_units(program, root, jumping(program), settles, end)
        assert float(found.lower) <= float(counts.min()) and float(counts.max()) <= float(found.upper)


@pytest.mark.parametrize("eps", [0.03, 0.06])
def test_bits_that_bounds_leave_open_are_decided_and_those_that_change_never(eps: float) -> None:
    net, box, points = _asked(0, eps)
    with torch.no_grad():
        program, counts = program_of(net, points), net(points)
        root = relax(program, box, Soundness.DEPLOYED, own=True)
        most = int((net.scores(points) > 0).any(0).sum())  # bits that an execution sets
    assert int((root.bounds[jumping(program)[0].name].upper > 0).sum()) > most
    region = Box(box.lower, box.upper)
    (true,) = decide(net, region, Spec.within(0, most + 0.5), stages=("bounds",), timeout=60)
    (false,) = decide(net, region, Spec.within(0, float(counts.max()) - 0.5), stages=("bounds",), timeout=60)
    assert true.status is Status.ROBUST and true.float_sound
    assert false.status is not Status.ROBUST
