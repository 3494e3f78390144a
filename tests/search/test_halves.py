"""Halves by signs whose bounds inside are made anew: they prove what holds, nothing else, and lose no part."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from surebound.bounds.reduced.network import Reduced
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.search import halves
from surebound.search.branch_and_bound import Options, Tree
from surebound.search.halves import Course, Half, HalfSplitter
from surebound.search.question import Cases, Question
from surebound.search.rule import Budget
from surebound.search.signs.splitter import SignSplitter
from surebound.search.workspace import Workspace
from tests.verify.oracle import tiny_net


def peak() -> tuple[nn.Sequential, Interval, float]:
    """A network of two inputs, a box, and the largest difference of its outputs there, by a grid."""
    net = tiny_net([2, 8, 8, 2], 5, scale=2.0)
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 401)] * 2)
    z = net(grid)
    return net, Interval(torch.zeros(1, 2), torch.ones(1, 2)), float((z[:, 1] - z[:, 0]).max())


def searched(net: nn.Sequential, box: Interval, levels: list[float], mode: Soundness) -> tuple[Tree, HalfSplitter]:
    """Prove by halves alone that the difference of outputs stays below each of some levels."""
    cases = Cases.over(box, torch.tensor([[[-1.0, 1.0]]]).expand(len(levels), 1, 2), -torch.tensor(levels).unsqueeze(1))

    def confirm(point: Tensor, number: int) -> Tensor | None:
        inside = point.float().clamp(box.lower, box.upper)
        return inside[0] if float(cases.smallest(net(inside))[0].max()) > 0 else None

    unknown = torch.full((len(levels),), torch.inf, dtype=torch.float64)
    question = Question(cases, torch.arange(len(levels)), unknown, confirm, mode)
    tree = Tree.of(len(levels), time.monotonic() + 600, Budget(50_000))
    with Workspace(net) as workspace, torch.no_grad():
        rest = 0, question, workspace, Options(), tree
        program = workspace.program(box.lower)
        reduced = SignSplitter.over(program, box, mode, *rest).reduced
        search = HalfSplitter(reduced, torch.arange(len(levels)), lambda part: SignSplitter(part, *rest, False), tree)
        search.finish(search.roots())
    return tree, search


@pytest.mark.parametrize("mode", [Soundness.REAL, Soundness.DEPLOYED])
def test_halves_prove_what_holds_and_nothing_else(monkeypatch: pytest.MonkeyPatch, mode: Soundness) -> None:
    """Without the usual splits and demands of cases: every sub-problem is a half; what cannot be cut ends by splits."""
    monkeypatch.setattr(halves, "NEAR", -math.inf)
    monkeypatch.setattr(HalfSplitter, "_refuted", lambda *_: False)
    net, box, top = peak()
    tree, search = searched(net, box, [top + 0.05, top + 0.5], mode)
    assert bool((tree.settled <= 0).all()) and tree.witness is None
    assert len(search.bounds) >= 5, "it was cut more than once"
    tree, _ = searched(net, box, [top - 0.02], mode)
    assert tree.witness is not None or float(tree.settled[0]) > 0


@pytest.mark.parametrize("mode", [Soundness.REAL, Soundness.DEPLOYED])
def test_cases_are_refuted_by_what_they_demand_only_if_nothing_makes_them_hold(
    monkeypatch: pytest.MonkeyPatch, mode: Soundness
) -> None:
    monkeypatch.setattr(halves, "NEAR", -math.inf)
    net, box, top = peak()
    told, real = list[bool](), HalfSplitter._refuted

    def watched(self: HalfSplitter, *args: Any) -> bool:
        told.append(real(self, *args))
        return told[-1]

    monkeypatch.setattr(HalfSplitter, "_refuted", watched)
    tree, search = searched(net, box, [top + 0.02, top + 0.1, top + 0.4], mode)
    assert bool((tree.settled <= 0).all()) and any(told), "it was of use"
    monkeypatch.setattr(HalfSplitter, "_refuted", lambda *_: False)
    assert len(search.bounds) < len(searched(net, box, [top + 0.02, top + 0.1, top + 0.4], mode)[1].bounds)
    monkeypatch.setattr(HalfSplitter, "_refuted", watched)
    told.clear()
    tree, _ = searched(net, box, [top - 0.02], mode)
    assert told and (tree.witness is not None or float(tree.settled[0]) > 0)


@pytest.mark.parametrize("near", [-math.inf, math.inf])
def test_no_half_and_no_open_case_is_lost(monkeypatch: pytest.MonkeyPatch, near: float) -> None:
    """Every execution of the whole is one of a half's, and every case that is open goes on in both."""
    monkeypatch.setattr(halves, "NEAR", near)
    monkeypatch.setattr(HalfSplitter, "_refuted", lambda *_: False)
    net, box, top = peak()
    cut, real = list[int](), HalfSplitter.halves

    def recorded(self: HalfSplitter, half: Half) -> list[Half]:
        found, before = real(self, half), signs_of(half.reduced)
        if found:
            one, other = (signs_of(each.reduced) for each in found)
            (new,) = set(one) - set(before)
            assert set(other) - set(before) == {new} and {one[new], other[new]} == {-1, 1}
            assert all(one[unit] == other[unit] == sign for unit, sign in before.items())
            assert torch.equal(found[0].cases, found[1].cases)
            cut.append(len(found[0].cases))
        return found

    monkeypatch.setattr(HalfSplitter, "halves", recorded)
    tree, _ = searched(net, box, [top + 0.02, top + 0.03, top + 2.0], Soundness.REAL)
    assert bool((tree.settled <= 0).all())
    assert near > 0 or max(cut) >= 2


def signs_of(reduced: Reduced) -> dict[tuple[str, int], int]:
    return {
        (layer.name, int(place)): int(sign)
        for layer in reduced.layers
        for place, sign in zip(layer.place, layer.fixed, strict=True)
        if sign
    }


def test_what_time_leaves_open_is_not_proved() -> None:
    net, box, top = peak()
    cases = Cases.over(box, torch.tensor([[[-1.0, 1.0]]]), torch.tensor([[-top - 0.05]]))
    unknown = torch.full((1,), torch.inf, dtype=torch.float64)
    question = Question(cases, torch.arange(1), unknown, lambda point, number: None)
    tree = Tree.of(1, time.monotonic() - 1, Budget(50_000))
    with Workspace(net) as workspace, torch.no_grad():
        rest = 0, question, workspace, Options(), tree
        reduced = SignSplitter.over(workspace.program(box.lower), box, Soundness.REAL, *rest).reduced
        search = HalfSplitter(reduced, torch.arange(1), lambda part: SignSplitter(part, *rest, False), tree)
        search.finish(search.roots())
    assert math.isinf(float(tree.settled[0])) and float(tree.settled[0]) > 0


def test_the_shorter_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What usual splits gained per doubling, beside what halves gain per cut."""
    slow = halves._log_seconds(1e-3, 10.0, 9.0, 10.0)  # 0.1 a doubling: 90 more
    fast = halves._log_seconds(0.1, 10.0, 6.0, 5)
    assert slow == pytest.approx(math.log2(1e-3) + 100) and fast == pytest.approx(math.log2(0.1) + 12.5)
    assert math.isinf(halves._log_seconds(0.1, 5.0, 5.0, 5)) and math.isinf(halves._log_seconds(0.1, math.inf, 5.0, 5))
    tree = Tree.of(1, time.monotonic() + 100, Budget(50_000))
    assert (
        not Course(tree, 1.0, False)._waits and not Course(tree, 20.0, True)._waits and Course(tree, 1.0, True)._waits
    )
