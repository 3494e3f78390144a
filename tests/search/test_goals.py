"""How far ascent goes: to where the sound pass proves, rounding included, and no further."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch

from surebound.bounds.linear.alpha import Adam
from surebound.bounds.reduced.descent import descend
from surebound.bounds.reduced.network import Reduced
from surebound.bounds.reduced.passes import Multipliers, Passes
from surebound.bounds.reduced.reduction import reduce_network
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.search.branch_and_bound import Options, Tree, explore
from surebound.search.question import Cases, Question
from surebound.search.rule import Budget
from surebound.search.signs.domains import Domains
from surebound.search.signs.splitter import SignSplitter
from surebound.search.workspace import Workspace
from tests.verify.oracle import tiny_net

C = torch.tensor([[-1.0, 1.0]])
BOX = Interval(torch.zeros(1, 3), torch.ones(1, 3))


def network(bias: float) -> tuple[torch.nn.Module, Reduced]:
    """A network and its reduction; the row is the difference of its outputs, and a bias."""
    net = tiny_net([3, 12, 12, 2], 0, scale=1.5)
    net[-1].bias.data[1] += bias
    with torch.no_grad():
        return net, reduce_network(program_of(net, BOX.lower), BOX, C, Soundness.DEPLOYED)


def rounded(reduced: Reduced, more: float) -> Reduced:
    """The network with rows that are known less exactly: what rounding does, large enough to see."""
    layers = tuple(
        dataclasses.replace(
            layer,
            rows=dataclasses.replace(
                layer.rows, up_offset=layer.rows.up_offset + more, low_offset=layer.rows.low_offset - more
            ),
        )
        for layer in reduced.layers
    )
    return dataclasses.replace(reduced, layers=layers)


def splitter_of(net: torch.nn.Module, reduced: Reduced, workspace: Workspace) -> SignSplitter:
    cases = Cases.over(BOX, C.unsqueeze(0), torch.zeros(1, 1))
    unknown = torch.full((1,), torch.inf, dtype=torch.float64)
    question = Question(cases, torch.arange(1), unknown, lambda *_: None)
    tree = Tree.of(1, time.monotonic() + 600, Budget(10_000))
    return SignSplitter(reduced, 0, question, workspace, Options(), tree, propagates=False)


@pytest.mark.parametrize("more", [0.01, 0.1])
def test_ascent_goes_on_until_rounding_is_paid(more: float) -> None:
    """It stopped where bounds without rounding were below 0: whatever was cut then, bounds stayed above it."""
    net, reduced = network(0.0)
    with Workspace(net) as workspace, torch.no_grad():
        roots = best(splitter_of(net, rounded(reduced, more), workspace))
        bias = -float(roots.upper) - 0.2 * float(roots.rounding)
        net, reduced = network(bias)
        splitter = splitter_of(net, rounded(reduced, more), workspace)
        pool, _ = splitter.bounded_roots(torch.arange(1))
        assert not len(pool)
        assert float(splitter.tree.settled) <= 0
        points = torch.rand(1000, 3).round(decimals=1)
        assert float((net(points) @ C[0]).max()) <= 0


@pytest.mark.parametrize("more", [0.01, 0.1])
def test_halves_of_an_open_case_are_bounded_until_rounding_is_paid(more: float) -> None:
    """With less to spare than rounding, cuts prove what no whole does."""
    net, reduced = network(0.0)
    with Workspace(net) as workspace, torch.no_grad():
        roots = best(splitter_of(net, rounded(reduced, more), workspace))
        net, reduced = network(-float(roots.upper) + 0.2 * float(roots.rounding))
        splitter = splitter_of(net, rounded(reduced, more), workspace)
        pool = explore(splitter, splitter.roots(), splitter.tree)
        assert not len(pool)
        assert float(splitter.tree.settled) <= 0
        assert 1 < splitter.tree.seen <= 20


def test_every_sub_problem_has_a_goal_of_its_own() -> None:
    """The first is to go far, the second stops at once: its multipliers are those it began with."""
    _, reduced = network(0.0)
    passes = Passes(reduced, torch.float32)
    alphas = torch.cat([layer.slope for layer in reduced.layers]).float().expand(2, -1)
    start = Multipliers(torch.zeros(alphas.shape, dtype=torch.int8), alphas, torch.zeros_like(alphas))
    a, offset = reduced.outputs.up.float().expand(2, -1), reduced.outputs.up_offset.float().expand(2)
    found, _ = descend(passes, a, offset, start, Adam(steps=20), torch.tensor([-100.0, 100.0]))
    assert torch.equal(found.alphas[1], alphas[1])
    bounds = passes.upper(passes.pull(a, offset, found))
    assert float(bounds[0]) < float(bounds[1])


def best(splitter: SignSplitter) -> Domains:
    """The whole with optimised multipliers, whatever it takes."""
    roots = splitter.roots()
    row = splitter.fast.mixed(roots.case, roots.weights)
    found, _ = descend(splitter.fast.passes, row.a, row.offset, roots.m, Adam(steps=80), -1e9)
    return splitter.bounds_of(dataclasses.replace(roots, m=found))
