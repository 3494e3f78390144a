"""Few inputs: `verify` splits the box, by the same rule and engine as queries."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from surebound.bounds.reduced.network import Reduced
from surebound.errors import InputError
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.region import LinfBall
from surebound.search import complete, inputs, parts, rule
from surebound.search.branch_and_bound import Options, Tree
from surebound.search.complete import search
from surebound.search.inputs import InputSplitter
from surebound.search.question import Cases, Finding, Question
from surebound.search.signs.domains import Domains
from surebound.search.stages import BranchAndBound, Stage
from surebound.search.workspace import Workspace
from surebound.verdict import Status, Verdict
from surebound.verify import Cascade, verify
from tests.verify.oracle import tiny_net

#: Limits by numbers, not by the clock: tests may share a slow machine.
OPTIONS = Options(seconds=600, domains=16)


def verdict(net: nn.Module, x: Tensor, label: int, eps: str, *stages: Stage) -> Verdict:
    (record,) = verify(net, LinfBall(x, eps, clip=(0, 1)), torch.tensor([label]), Cascade("test", stages))
    return record.verdict


@pytest.mark.parametrize(("count", "eps"), [(2, "1/2"), (5, "1/6")])
def test_boxes_decide_what_a_few_signs_do_not(count: int, eps: str) -> None:
    """The label's bias lies a little above, then below what samples need: robust, then not."""
    net, x, width = (
        tiny_net([count, 80, 80, 3], 1, scale=2.5),
        torch.full((1, count), 0.5),
        float(Fraction(eps)),
    )
    z = net(x - width + 2 * width * torch.rand(20_000, count, generator=torch.Generator().manual_seed(0)))
    worst = (z[:, 1:] - z[:, :1]).amax(1)
    net[-1].bias.data[0] += float(worst.max() + 0.1 * (worst.max() - worst.min()))
    by_signs = verdict(net, x, 0, eps, BranchAndBound(OPTIONS, splits=("relu-splitting",)))
    assert by_signs.status is Status.UNKNOWN
    found = verdict(net, x, 0, eps, BranchAndBound(OPTIONS))
    assert (found.status, found.float_sound, found.bound <= 0) == (Status.ROBUST, True, True)
    net[-1].bias.data[0] -= float(0.2 * (worst.max() - worst.min()))
    found = verdict(net, x, 0, eps, BranchAndBound(OPTIONS, splits=("input-splitting",)))
    assert found.status is Status.FALSIFIED
    assert found.witness is not None
    assert int(net(found.witness[None]).argmax()) != 0


def test_boxes_decide_smooth_networks() -> None:
    """No ReLU to split at all."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).requires_grad_(False)
    x = torch.full((1, 2), 0.5)
    corners = torch.cartesian_prod(torch.linspace(0.2, 0.8, 80), torch.linspace(0.2, 0.8, 80))
    z = net(corners)
    net[-1].bias.data[0] += float((z[:, 1] - z[:, 0]).max()) + 0.02
    assert verdict(net, x, 0, "3/10", BranchAndBound(OPTIONS)).status is Status.ROBUST
    net[-1].bias.data[0] -= 0.04
    assert verdict(net, x, 0, "3/10", BranchAndBound(OPTIONS)).status is Status.FALSIFIED


def test_the_rule_is_the_queries_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes only for few inputs and many ReLUs; what boxes give up goes to signs."""
    seen: list[str] = []
    real = complete.Searcher.by_inputs
    monkeypatch.setattr(complete.Searcher, "by_inputs", lambda *given: seen.append("boxes") or real(*given))
    net, x = tiny_net([2, 4, 2, 2], 0, scale=2.5), torch.full((1, 2), 0.45)
    label, stage = int(net(x).argmax()), BranchAndBound(Options(seconds=600))
    by_signs = verdict(net, x, label, "1/3", stage)
    assert by_signs.status in (Status.ROBUST, Status.FALSIFIED)
    assert seen == []
    monkeypatch.setattr(rule, "FEW_RELUS", -1)
    assert verdict(net, x, label, "1/3", stage).status is by_signs.status
    assert seen == ["boxes"]
    monkeypatch.setattr(complete.Searcher, "by_inputs", lambda *given: Finding(given_up=True))
    assert verdict(net, x, label, "1/3", stage).status is by_signs.status


def test_unknown_ways_are_refused() -> None:
    with pytest.raises(InputError, match="name one or more of input-splitting, relu-splitting, range-splitting"):
        BranchAndBound(splits=("inputs",))


def one_input_matters(count: int) -> nn.Sequential:
    """A network of many inputs and many unstable ReLUs whose output depends on one of them much more than on others."""
    net = tiny_net([count, 60, 60, 2], 1, scale=2.0)
    net[0].weight.data[:, 1:] *= 0.01
    return net


def asked(net: nn.Sequential, x: Tensor, radius: Tensor, beyond: float) -> Question:
    """Does the first output stay below the largest value that samples find, plus a part of their range?"""
    box = Interval(x - radius, x + radius)
    draws = torch.rand(20_000, x.shape[1], generator=torch.Generator().manual_seed(0))
    z = net(box.lower + draws * (box.upper - box.lower))[:, 0]
    level = float(z.max() + beyond * (z.max() - z.min()))
    cases = Cases.over(box, torch.tensor([[[1.0, 0.0]]]), torch.tensor([[-level]]))
    unknown = torch.full((1,), torch.inf, dtype=torch.float64)
    return Question(cases, torch.arange(1), unknown, lambda point, number: None)


def test_boxes_of_more_inputs_are_tried_while_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """One input that matters is cut until its boxes are proved; where all matter alike, signs get their turn soon."""
    net, x = one_input_matters(12), torch.full((1, 12), 0.5)
    question = asked(net, x, torch.full((1, 12), 0.4), 0.1)
    monkeypatch.setattr(complete.Searcher, "by_signs", lambda *given: pytest.fail("boxes gain enough"))
    with Workspace(net) as workspace:
        found = search(question, workspace, Options(seconds=600))
    assert found.margins is not None and float(found.margins) <= 0

    alike, rounds, real = tiny_net([12, 60, 60, 2], 1, scale=2.0), list[int](), InputSplitter.advance
    monkeypatch.setattr(InputSplitter, "advance", lambda s, b, t: rounds.append(len(b)) or real(s, b, t))
    monkeypatch.setattr(complete.Searcher, "by_signs", lambda *given: Finding(timed_out=True))
    with Workspace(alike) as workspace:
        assert search(asked(alike, x, torch.full((1, 12), 0.4), 0.1), workspace, Options(seconds=600)).timed_out
    assert len(rounds) <= 4


def test_inputs_that_do_not_vary_do_not_count() -> None:
    net, x = one_input_matters(100), torch.full((1, 100), 0.5)
    radius = torch.zeros(1, 100)
    radius[0, :3] = 0.4
    with Workspace(net) as workspace:
        program = workspace.program(x)
        planned = rule.ways(program, asked(net, x, radius, 0.1), 100)
        assert planned == rule.schedule((rule.INPUTS, rule.SIGNS))
        assert rule.ways(program, asked(net, x, radius + 0.1, 0.1), 100) == [(rule.SIGNS, rule.Budget(100))]
        radius[0, :12] = 0.4
        assert rule.ways(program, asked(net, x, radius, 0.1), 100)[0] == (rule.INPUTS, rule.GLIMPSE)


def test_few_boxes_at_once_where_each_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = one_input_matters(3), torch.full((1, 3), 0.5)
    with Workspace(net) as workspace:
        splitter = InputSplitter(workspace.program(x), asked(net, x, torch.full((1, 3), 0.4), 0.1), 100.0)
    monkeypatch.setattr(inputs.time, "monotonic", lambda: 60.0)
    assert splitter.at_once > 100
    splitter._seconds = 2.5
    assert splitter.at_once == 2  # an eighth of the 40 seconds that are left
    splitter._seconds = 70.0
    assert splitter.at_once == 1


def test_cases_that_share_a_box_share_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of each case are those that it has alone, and every box is bounded once."""
    net, x = tiny_net([3, 20, 20, 4], 2, scale=2.0), torch.full((1, 3), 0.5)
    box = Interval(x - 0.3, x + 0.3)
    c = torch.cat([torch.eye(4), -torch.eye(4)]).unsqueeze(1)
    cases = Cases.over(box, c, torch.full((8, 1), -0.5))
    unknown = torch.full((8,), torch.inf, dtype=torch.float64)
    question = Question(cases, torch.arange(8), unknown, lambda point, number: None)
    sizes, real = list[int](), inputs.relax
    monkeypatch.setattr(
        inputs, "relax", lambda p, b, *rest, **named: sizes.append(len(b.lower)) or real(p, b, *rest, **named)
    )

    def bounded(asked: Question) -> Tensor:
        with Workspace(net) as workspace, torch.no_grad():
            splitter = InputSplitter(workspace.program(x), asked, torch.inf)
            tree = Tree.of(len(asked.cases), torch.inf, rule.Budget(100))
            left = splitter.advance(splitter.roots(), tree)
        return tree.settled if left is None else tree.settled.scatter_reduce(0, left.case, left.upper, "amax")

    together = bounded(question)
    assert sizes == [1]
    alone = torch.cat([bounded(question[torch.tensor([i])]) for i in range(8)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_dear_boxes_are_cut_before_they_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The halves cover the box, all cases are cut at the same input, and the proof is one of every part."""
    monkeypatch.setattr(rule, "DEAR", 0)
    net, x = one_input_matters(12), torch.full((1, 12), 0.5)
    box, c = Interval(x - 0.4, x + 0.4), torch.tensor([[[-1.0, 1.0]], [[-0.5, 0.5]]])
    draws = net(box.lower + 0.8 * torch.rand(2000, 12, generator=torch.Generator().manual_seed(0)))
    rows = torch.einsum("nsk,bk->bn", c, draws)
    cases = Cases.over(box, c, -rows.amax(0).unsqueeze(1) - 0.3)
    unknown = torch.full((2,), torch.inf, dtype=torch.float64)
    question = Question(cases, torch.arange(2), unknown, lambda point, number: None)
    with Workspace(net) as workspace, torch.no_grad():
        roots = InputSplitter(workspace.program(x), question, torch.inf).roots()
    assert roots.case.tolist() == [0, 1, 0, 1]
    low, high = (end.reshape(2, 2, 12) for end in (roots.lower, roots.upper_end))  # halves, cases
    torch.testing.assert_close(low[0], box.lower.expand(2, -1), rtol=0, atol=0)
    torch.testing.assert_close(high[1], box.upper.expand(2, -1), rtol=0, atol=0)
    (cut,) = {tuple((h < box.upper[0]).nonzero()[:, 0].tolist()) for h in high[0]}
    assert len(cut) == 1 and torch.equal(high[0][:, cut], low[1][:, cut])
    monkeypatch.setattr(complete.Searcher, "by_signs", lambda *given: pytest.fail("boxes gain enough"))
    sizes, real = list[int](), inputs.relax
    monkeypatch.setattr(
        inputs, "relax", lambda p, b, *rest, **named: sizes.append(len(b.lower)) or real(p, b, *rest, **named)
    )
    with Workspace(net) as workspace:  # without a certificate, one reduction serves all parts (below)
        found = search(replace(question, certify=True), workspace, Options(seconds=600))
    assert found.margins is not None and bool((found.margins <= 0).all())
    assert sizes[0] == 2
    assert bool((rows.double() + cases.d[:, 0] <= found.margins).all())


def test_a_dear_box_is_not_begun_without_time_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "DEAR", 0)
    net, x = one_input_matters(12), torch.full((1, 12), 0.5)
    with Workspace(net) as workspace, torch.no_grad():
        splitter = InputSplitter(workspace.program(x), asked(net, x, torch.full((1, 12), 0.4), 0.1), torch.inf)
        tree = Tree.of(1, time.monotonic() + 5, rule.Budget(100))
        splitter._seconds = 70.0
        batch = splitter.roots()
        assert splitter.advance(batch, tree) is batch
    assert tree.left <= 0 and float(tree.settled) == -torch.inf  # and so no proof


def hidden_peak(count: int) -> tuple[nn.Sequential, Tensor, float]:
    """A network of ``count`` inputs, of which three matter, and its largest first output over the box, by a grid."""
    net = tiny_net([count, 16, 16, 2], 5, scale=2.0)
    with torch.no_grad():
        net[0].weight[:, 3:] *= 1e-6
    grid = torch.cartesian_prod(*[torch.linspace(0.1, 0.9, 41)] * 3)
    x = torch.cat([grid, torch.full((len(grid), count - 3), 0.5)], 1)
    z = net(x)
    return net, x[(z[:, 1] - z[:, 0]).argmax()], float((z[:, 1] - z[:, 0]).max())


@pytest.mark.parametrize("patience", [0.0, 1.0])
@pytest.mark.parametrize("mode", [Soundness.REAL, Soundness.DEPLOYED])
def test_parts_of_a_dear_box_prove_what_holds_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, mode: Soundness, patience: float
) -> None:
    """A row a little below 0 everywhere is proved; one that is above 0 at one point of a grid is not."""
    monkeypatch.setattr(rule, "DEAR", 0)
    monkeypatch.setattr(parts, "GAIN", patience)  # 0: bounds inside are optimised when a cut does not help; 1: at once
    count = 9
    net, peak, top = hidden_peak(count)
    x = torch.full((1, count), 0.5)
    box = Interval(x - 0.4, x + 0.4)
    seen, real = list[tuple[Tensor, Tensor]](), parts.narrowed
    monkeypatch.setattr(parts, "narrowed", lambda r, low, up, *rest: seen.append((low, up)) or real(r, low, up, *rest))
    for above, holds in ((0.05, True), (-0.01, False)):
        cases = Cases.over(box, torch.tensor([[[-1.0, 1.0]]]), torch.tensor([[-top - above]]))

        def confirm(point: Tensor, number: int, cases: Cases = cases) -> Tensor | None:
            inside = point.float().clamp(box.lower, box.upper)
            return inside[0] if float(cases.smallest(net(inside))) > 0 else None

        unknown = torch.full((1,), torch.inf, dtype=torch.float64)
        question = Question(cases, torch.arange(1), unknown, confirm, mode)
        with Workspace(net) as workspace, torch.no_grad():
            end = time.monotonic() + 600
            found = complete.Searcher(question, workspace, Options(), end).by_parts()
        assert found.margins is not None
        assert bool((found.margins <= 0).all()) == holds
        assert (found.witness is None) == holds
        if holds:
            assert any(bool(((low <= peak) & (peak <= up)).all()) for low, up in seen), "the part with the peak"
            assert sum(bool((low == box.lower[0]).all()) for low, _ in seen) >= 1


class Enough(Exception):
    """Stops a search that has been seen to cut often enough."""


@pytest.mark.parametrize("patience", [-10.0, 1.0])
def test_no_part_and_no_open_case_of_a_dear_box_is_lost(monkeypatch: pytest.MonkeyPatch, patience: float) -> None:
    """What is bounded next are halves that cover the part, each with all cases that were open over it."""
    monkeypatch.setattr(rule, "DEAR", 0)
    monkeypatch.setattr(parts, "GAIN", patience)  # below 0: cut always; 1: signs are split before each cut
    net, _, top = hidden_peak(9)
    x = torch.full((1, 9), 0.5)
    box, row = Interval(x - 0.4, x + 0.4), torch.tensor([[-1.0, 1.0]])
    cuts, real = list[int](), parts.PartSplitter._cut

    def cut(self: parts.PartSplitter, reduced: Reduced, pool: Domains, *rest: Any) -> list[parts.Part]:
        found, open_cases = real(self, reduced, pool, *rest), frozenset(pool.case.tolist())
        low, high = reduced.lower, reduced.upper
        points = low + torch.rand(100, len(low), dtype=low.dtype) * (high - low)
        held = torch.stack([((part.lower <= points) & (points <= part.upper)).all(1) for part in found])
        assert bool(held.any(0).all()), "the halves cover the part"
        assert all(open_cases == set(part.cases.tolist()) for part in found)
        cuts.append(len(open_cases))
        if len(cuts) == 4:
            raise Enough
        return found

    monkeypatch.setattr(parts.PartSplitter, "_cut", cut)
    cases = Cases.over(box, row.expand(3, 1, 2), torch.tensor([[-top - 0.05], [-top + 0.01], [-top - 0.1]]))
    unknown = torch.full((3,), torch.inf, dtype=torch.float64)
    question = Question(cases, torch.arange(3), unknown, lambda point, number: None)
    with Workspace(net) as workspace, torch.no_grad():
        begun = complete.Searcher(question, workspace, Options(), time.monotonic() + 600)
        with pytest.raises(Enough):
            begun.by_parts()
    assert max(cuts) > 1
