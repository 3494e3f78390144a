"""Rows of single entries: what an affine call takes of them is read off, and is what a sum over all entries gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.entries import entries
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.linear.steps import AffineStep
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.kernels.rows import dot
from surebound.numerics import Soundness

NETS = {
    "bias": nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 5), nn.ReLU(), nn.Linear(5, 2)),
    "no bias": nn.Sequential(nn.Flatten(), nn.Linear(16, 6, bias=False), nn.ReLU(), nn.Linear(6, 2, bias=False)),
}


@torch.no_grad()
@pytest.mark.parametrize("mode", list(Soundness))
@pytest.mark.parametrize("net", NETS)
def test_the_price_of_entries_is_that_of_their_rows(net: str, mode: Soundness) -> None:
    x = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    relaxed = relax(program_of(NETS[net], x), Interval(x - 0.1, x + 0.1), mode, own=False)
    seen = 0
    for name, step in relaxed.steps.items():
        if not isinstance(step, AffineStep) or step.price is None:
            continue
        value = relaxed.bounds[name].lower
        index = torch.stack([torch.randperm(value[0].numel())[:2] for _ in range(2)])
        rows = torch.zeros(2, 2, value[0].numel()).scatter_(2, index.t().unsqueeze(2), 1.0)
        rows = torch.cat([rows, -rows]).reshape(4, *value.shape)
        summed = step.pull(rows).offset
        found = step.price_of_entries(index, value.shape)
        read = step.pull(rows, priced=found)
        torch.testing.assert_close(read.offset, summed, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found, dot(rows, step.price), rtol=1e-12, atol=1e-12)
        assert torch.equal(read.offset, found) or step.recentre is not None  # nothing else is summed over the value
        seen += 1
    layers = sum(hasattr(module, "weight") for module in NETS[net])
    assert seen == (0 if net == "no bias" and mode is Soundness.NONE else layers)


@torch.no_grad()
@pytest.mark.parametrize("block", [1, 3, 100])
def test_entries_have_the_bounds_of_their_rows(block: int) -> None:
    net, x = NETS["bias"], torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    relaxed = relax(program_of(net, x), Interval(x - 0.1, x + 0.1), Soundness.DEPLOYED, own=False)
    source = next(name for name, box in relaxed.bounds.items() if box.shape == (2, 5))
    where = torch.tensor([[True, False, True, True, False], [False, True, False, False, False]])
    found = entries(relaxed, source, where, block)
    rows = torch.eye(5).unsqueeze(1).expand(5, 2, 5).contiguous()
    offset = torch.zeros(5, 2, dtype=torch.float64)
    upper = relaxed.upper(relaxed.pull(source, rows, offset)).t()
    lower = -relaxed.upper(relaxed.pull(source, -rows, offset)).t()
    torch.testing.assert_close(found.upper[where], upper[where])
    torch.testing.assert_close(found.lower[where], lower[where])


class _Count(nn.Module):
    """How many signs of a layer are those that the last inputs name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        signs = torch.sign(self.second(torch.relu(self.first(x[:, :3]))))
        return torch.abs(torch.round(signs - x[:, 3:])).sum(1, keepdim=True)


@pytest.mark.parametrize("size", [0.3, 2.0])  # signs that are known, signs that are not
def test_an_operand_that_is_one_number_costs_no_passes(size: float) -> None:
    """What is compared with numbers that do not vary in the box is bounded as well by intervals."""
    torch.manual_seed(3)
    net = _Count().eval().requires_grad_(False)
    x = torch.tensor([[0.3, -0.2, 0.5, 1.0, -1.0]])
    radius = size * torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0]])
    asked = []

    def tighten(relaxed: Relaxed, source: str, where: Tensor) -> Interval:
        asked.append(relaxed.program.graph.by_name[source].op)
        return entries(relaxed, source, where, 8)

    program = program_of(net, x)
    with torch.no_grad():
        found = relax(program, Interval(x - radius, x + radius), Soundness.REAL, own=True, tighten=tighten)
        moved = Interval(x - radius, x + radius + torch.tensor([[0.0, 0.0, 0.0, 0.1, 0.1]]))
        asked, before = [], asked
        relax(program, moved, Soundness.REAL, own=True, tighten=tighten)
    assert set(before) == {"aten.linear.default"}
    assert size < 1 or "aten.sub.Tensor" in asked  # where both vary, it does not follow from intervals
    points = x + radius * torch.empty(500, 5).uniform_(-1, 1)
    out = found.bounds[program.graph.output]
    assert bool(((net(points) >= out.lower - 1e-5) & (net(points) <= out.upper + 1e-5)).all())
