"""Sub-problems are cut into halves that cover them, settled by their bounds, and never lost."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor, nn

from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.search import mixing
from surebound.search.branch_and_bound import Tree
from surebound.search.complete import _better
from surebound.search.inputs import Boxes, InputSplitter, _cut
from surebound.search.question import Cases, Finding, Proof, Question
from surebound.search.rule import Budget


@dataclass
class Settled:
    """Sub-problems with these bounds, one for each case."""

    upper: Tensor
    case: Tensor
    rounding: Tensor

    def __len__(self) -> int:
        return len(self.upper)


def tree_of(cases: int) -> Tree:
    return Tree.of(cases, time.monotonic() + 60, Budget(1000, 1000))


def test_a_bound_that_is_no_number_proves_nothing() -> None:
    tree = tree_of(3)
    upper = torch.tensor([math.nan, -1.0, math.inf])
    tree.settle(Settled(upper, torch.arange(3), torch.zeros(3)))
    assert tree.settled.tolist() == [math.inf, -1.0, math.inf]
    tree.settle(Settled(torch.tensor([-5.0, 2.0]), torch.tensor([0, 1]), torch.zeros(2)))
    assert tree.settled.tolist() == [math.inf, 2.0, math.inf]  # the largest of all that was settled


def test_bounds_that_rest_on_other_things_are_not_mixed() -> None:
    tolerance = Finding(torch.tensor([-1.0, 2.0]).double(), Proof.TOLERANCE)
    sound = Finding(torch.tensor([1.0, -2.0]).double(), Proof.DEPLOYED)
    found = _better(tolerance, sound)
    assert found.proof is Proof.DEPLOYED and found.margins is not None and found.margins.tolist() == [1.0, -2.0]
    found = _better(sound, Finding(torch.tensor([-1.0, 2.0]).double(), Proof.DEPLOYED))
    assert found.margins is not None and found.margins.tolist() == [-1.0, -2.0]


def test_two_halves_hold_every_point_of_their_box() -> None:
    draw = torch.Generator().manual_seed(0)
    low = torch.rand(5, 3, generator=draw)
    high = low + torch.rand(5, 3, generator=draw)
    axis = torch.tensor([[0], [1], [2], [1], [0]])
    halves = _cut(Boxes(low, high, torch.arange(5), torch.ones(5).double()), axis)
    assert halves.case.tolist() == [*range(5), *range(5)]
    for _ in range(200):
        point = low + torch.rand(5, 3, generator=draw) * (high - low)
        inside = ((halves.lower <= point.repeat(2, 1)) & (point.repeat(2, 1) <= halves.upper_end)).all(1)
        assert bool((inside[:5] | inside[5:]).all())
    for low_half, high_half in ((0, 5), (1, 6), (2, 7)):
        assert torch.equal(halves.lower[low_half], low[low_half]) and torch.equal(
            halves.upper_end[high_half], high[low_half]
        )
    volume = (halves.upper_end - halves.lower).prod(1)
    assert torch.allclose(volume[:5] + volume[5:], (high - low).prod(1))


def question_of(net: nn.Module, lower: Tensor, upper: Tensor, c: Tensor, d: Tensor) -> InputSplitter:
    program = program_of(net, lower)
    cases = Cases.over(Interval(lower, upper), c, d)
    unknown = torch.full((len(cases),), math.inf, dtype=torch.float64)
    question = Question(cases, torch.arange(len(cases)), unknown, lambda *_: None, mode=Soundness.DEPLOYED)
    return InputSplitter(program, question, time.monotonic() + 60)


def test_a_box_too_small_to_cut_stays_open() -> None:
    net, point = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).requires_grad_(False), torch.rand(1, 2)
    splitter = question_of(net, point, point + 0.0, torch.ones(1, 1, 1), torch.zeros(1, 1))
    tree, whole = tree_of(1), splitter.roots()
    open_ = Boxes(whole.lower, whole.upper_end, whole.case, torch.ones(1).double())
    assert splitter._halves(open_, torch.ones(1, 2), tree) is None
    assert tree.settled.tolist() == [1.0]


def test_a_case_of_fewer_rows_is_bounded_by_its_own() -> None:
    """The row that it does not have, 0 z + 0, would prove it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).requires_grad_(False)
    c = torch.tensor([[[1.0], [0.0]], [[0.0], [0.0]]])
    d = torch.tensor([[100.0, math.inf], [100.0, 100.0]])  # both hold everywhere
    splitter = question_of(net, torch.zeros(1, 2), torch.ones(1, 2), c, d)
    tree = tree_of(2)
    left = splitter.advance(splitter.roots(), tree)
    assert left is not None and set(left.case.tolist()) == {0, 1}
    assert bool((left.upper > 50).all()) and bool((tree.settled == -math.inf).all())


def test_mixtures_are_paid_in_fractions() -> None:
    """Rows at a point, mixed by any weights, where offsets take away what float64 sees of them."""
    draw, unpaid = torch.Generator().manual_seed(3), 0
    for _ in range(60):
        a, x = (torch.rand(shape, generator=draw).double() + 0.3 for shape in ((1, 2, 5), (1, 5)))
        a, weights = a / 3, torch.rand(1, 2, generator=draw).double()
        offset = -torch.einsum("bsn,bn->bs", a, x)
        exact = Fraction(0)
        for row, d, weight in zip(a[0].tolist(), offset[0].tolist(), weights[0].tolist(), strict=True):
            terms = (Fraction(c) * Fraction(v) for c, v in zip(row, x[0].tolist(), strict=True))
            exact += Fraction(weight) * (sum(terms, Fraction(0)) + Fraction(d))
        assert exact <= Fraction(float(mixing._sound(a, offset, x, x, weights)))
        unpaid += exact > Fraction(float(mixing._largest(a, offset, x, x, weights)))
    assert unpaid > 5
