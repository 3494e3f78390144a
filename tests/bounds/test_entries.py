"""Rows of single entries: what an affine call takes of them is read off, and is what a sum over all entries gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

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
