"""Searches whose bounds lack nothing but rounding: they go on over rows in float64, and agree with the truth."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch
from torch import nn

from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.reduced.passes import Multipliers
from surebound.bounds.reduced.reduction import Reduction, reduce_network
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.region import LinfBall
from surebound.search.branch_and_bound import Options, Tree
from surebound.search.question import Cases, Question
from surebound.search.rule import Budget
from surebound.search.signs import propagation, rounding
from surebound.search.signs.domains import Domains
from surebound.search.signs.splitter import SignSplitter
from surebound.search.workspace import Workspace
from tests.search.test_branch_and_bound import GOOD
from tests.search.test_branch_and_bound import test_agrees_with_every_activation_pattern as agrees
from tests.verify.oracle import tiny_net

C = torch.tensor([[-1.0, 1.0]])


@pytest.mark.parametrize("seed", [0, 1])
def test_a_search_over_rows_in_float64_agrees_too(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """As if the first reduction left nothing but rounding: the search goes on over another one."""
    monkeypatch.setattr(rounding, "_ROUNDS", 0)
    made, over = [], SignSplitter.over
    monkeypatch.setattr(SignSplitter, "over", lambda *args, **more: made.append(more) or over(*args, **more))
    agrees(GOOD, seed)
    assert any(more.get("wide") and more["known"] for more in made)


def test_rounding_is_in_the_way_where_it_is_all_that_bounds_lack() -> None:
    net, x = tiny_net([2, 4, 2, 2], 0), torch.full((1, 2), 0.45)
    box = LinfBall(x, "1/3", (0, 1)).interval()
    reduced = reduce_network(program_of(net, x), box, C, Soundness.DEPLOYED)
    m = Multipliers(torch.zeros(2, 1, dtype=torch.int8), torch.zeros(2, 1), torch.zeros(2, 1))
    pool = Domains.unknown(torch.zeros(2).long(), torch.ones(2, 1), m)
    within = dataclasses.replace(pool, upper=torch.tensor([0.1, 0.2]), rounding=torch.tensor([0.2, 0.2]))
    beyond = dataclasses.replace(within, upper=torch.tensor([0.1, 0.3]))
    tree = Tree.of(1, time.monotonic() + 600, Budget(100))
    found = rounding.RoundingInTheWay(reduced, Soundness.DEPLOYED, tree, 1.0)
    assert [found.pays(each) for each in (pool, within, beyond, within, within)] == [False] * 4 + [True]
    late = rounding.RoundingInTheWay(reduced, Soundness.DEPLOYED, tree, 1000.0)
    assert not any(late.pays(within) for _ in range(3))
    wide = reduce_network(program_of(net, x), box, C, Soundness.DEPLOYED, wide=True)
    for network, mode in ((wide, Soundness.DEPLOYED), (reduced, Soundness.NONE)):
        known = rounding.RoundingInTheWay(network, mode, tree, 1.0)
        assert not any(known.pays(within) for _ in range(3))


def test_a_network_that_is_reduced_again_is_so_in_float64_where_rounding_matters() -> None:
    net, x = tiny_net([2, 4, 2, 2], 0), torch.full((1, 2), 0.45)
    box = LinfBall(x, "1/3", (0, 1)).interval()
    reduced = reduce_network(program_of(net, x), box, C, Soundness.DEPLOYED)
    m = Multipliers(torch.zeros(2, 1, dtype=torch.int8), torch.zeros(2, 1), torch.zeros(2, 1))
    pool = Domains.unknown(torch.zeros(2).long(), torch.ones(2, 1), m)
    some = dataclasses.replace(pool, upper=torch.tensor([0.1, 9.0]), rounding=torch.tensor([0.02, 0.02]))
    little = dataclasses.replace(some, rounding=torch.tensor([0.01, 0.01]))
    tree = Tree.of(1, time.monotonic() + 600, Budget(100))
    found = rounding.RoundingInTheWay(reduced, Soundness.DEPLOYED, tree, 1.0)
    assert [found.matters(each) for each in (some, little, pool)] == [True, False, False]
    assert not rounding.RoundingInTheWay(reduced, Soundness.DEPLOYED, tree, 1000.0).matters(some)
    wide = reduce_network(program_of(net, x), box, C, Soundness.DEPLOYED, wide=True)
    assert not rounding.RoundingInTheWay(wide, Soundness.DEPLOYED, tree, 1.0).matters(some)


@pytest.mark.parametrize("wide", [False, True])
def test_rounding_shows_in_cases_that_say_much_by_themselves(monkeypatch: pytest.MonkeyPatch, wide: bool) -> None:
    """It was hidden there, and a search within 8e-4 of its proof split on: rows in float64 would have settled it."""
    monkeypatch.setattr(propagation, "_GRIPS", 0.0)
    net, box = tiny_net([2, 8, 8, 2], 5, scale=2.0), Interval(torch.zeros(1, 2), torch.ones(1, 2))
    cases = Cases.over(box, C.unsqueeze(0), torch.zeros(1, 1))
    unknown = torch.full((1,), torch.inf, dtype=torch.float64)
    question = Question(cases, torch.arange(1), unknown, lambda *_: None, Soundness.REAL)
    tree = Tree.of(1, time.monotonic() + 600, Budget(100))
    with Workspace(net) as workspace, torch.no_grad():
        rest = 0, question, workspace, Options(), tree
        splitter = SignSplitter.over(workspace.program(box.lower), box, Soundness.REAL, *rest, wide=wide)
        pool, _ = splitter.bounded_roots(torch.arange(1))
    assert bool(splitter.propagation.grips.all()) and len(pool) == 1
    assert (float(pool.rounding) == 0) is wide


@pytest.mark.parametrize("wide", [False, True])
def test_known_bounds_leave_backward_passes_to_what_is_loose(wide: bool) -> None:
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 9), nn.ReLU(),
        nn.Linear(9, 2),
    ).requires_grad_(False)  # fmt: skip
    x = torch.rand(1, 1, 8, 8)
    program, box = program_of(net, x), LinfBall(x, "1/20", (0, 1)).interval()
    first = relax(program, box, Soundness.DEPLOYED, own=True)
    reduction, asked = Reduction(1 << 29), dict[str, int]()

    def tighten(relaxed: Relaxed, source: str, where: torch.Tensor) -> Interval:
        asked[source] = int(where.sum())
        return reduction.tighten(relaxed, source, where)

    relax(program, box, Soundness.DEPLOYED, own=True, tighten=tighten)
    before, reduction = dict(asked), Reduction(1 << 29)
    again = relax(program, box, Soundness.DEPLOYED, own=True, tighten=tighten, wide=wide, known=first.bounds)
    for name, known in first.bounds.items():
        assert bool((again.bounds[name].lower >= known.lower).all())
        assert bool((again.bounds[name].upper <= known.upper).all())
    for source, count in asked.items():
        known = first.bounds[source]
        assert count == int(((known.lower < 0) & (known.upper > 0)).sum()) < before[source]
    points = box.lower + torch.rand(300, 1, 8, 8).round() * (box.upper - box.lower)
    found = net(points)
    out = again.bounds[program.graph.output]
    assert bool((found >= out.lower).all() and (found <= out.upper).all())
