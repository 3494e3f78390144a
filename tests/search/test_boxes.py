"""Disjunctions of boxes with rows of their own: many boxes bounded at a time, against boxes one by one and points."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest
import torch

from surebound.errors import QueryError
from surebound.numerics import Soundness, outer_float32
from surebound.region import Box
from surebound.search import boxes as module
from surebound.search.boxes import bounds_by_box, varying_most
from surebound.search.cases import Case, boxes_of, cases, coefficients
from surebound.search.formula import row_bounds
from surebound.search.formula_cases import FormulaCases
from surebound.search.problem import Problem, inner_box
from surebound.spec.formula import Atom
from surebound.verdict import Status
from surebound.vnnlib.problem import QueryProblem, build
from surebound.vnnlib.runtime import Session
from surebound.vnnlib.solve import decide
from surebound.vnnlib.text import parse_query
from tests.vnnlib.nets import model, random_dense

NET = model(random_dense([2, 12, 12, 1], 3))
HEAD = "(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n"


def values(points: np.ndarray) -> np.ndarray:
    """onnxruntime on points (N, 2): (N,)."""
    session = Session(NET)
    return np.array([float(next(iter(session.run({"x": p[None].astype(np.float32)}).values())).item()) for p in points])


def disjunction(count: int, margin: float, seed: int = 0, wrong: int | None = None) -> str:
    """A query: over small boxes, may the output leave the range that it has at 16 points, widened by a margin?"""
    rng, choices = np.random.default_rng(seed), []
    for number in range(count):
        low = rng.uniform(-1, 1, 2)
        high = low + rng.uniform(0, 0.1, 2)
        found = values(rng.uniform(low, high, (16, 2)))
        room = -0.01 if number == wrong else margin
        bounds = " ".join(f"(>= X_{i} {low[i]:.9f}) (<= X_{i} {high[i]:.9f})" for i in (0, 1))
        choices += [
            f"(and {bounds} (<= Y_0 {found.min() - room:.9f}))",
            f"(and {bounds} (>= Y_0 {found.max() + room:.9f}))",
        ]
    return HEAD + "(assert (or\n" + "\n".join(choices) + "))"


def problem_of(text: str) -> QueryProblem:
    return build(parse_query(text), {"N": NET})


def members_of(problem: Problem) -> list[Case]:
    return cases(problem.formula, problem, lambda: True)


@pytest.mark.parametrize("method", ["interval", "crown"])
@pytest.mark.parametrize("at_once", [1, 3, 1024])
def test_many_boxes_have_the_bounds_of_each(method: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", at_once)
    text = disjunction(7, 0.05) + "(assert (or (<= Y_0 0.4) (and (>= Y_0 0.3) (<= Y_0 0.9))))"
    problem = problem_of(text)
    asked = FormulaCases.of(problem, members_of(problem), lambda _: False).tensors
    assert len(asked) == 28 and len(asked.lower) == 7 and set(asked.valid.sum(1).tolist()) == {2, 3}
    program = problem.network.program
    together = bounds_by_box(program, asked, method, Soundness.REAL)
    for i in range(len(asked)):
        low, high = asked[torch.tensor([i])].boxes
        c, d = asked.c[i, asked.valid[i]], asked.d[i, asked.valid[i]]
        one = row_bounds(program, Box(low, high), c, d, method, Soundness.REAL).min()
        assert together[i].item() == pytest.approx(one.item(), abs=1e-5)
        points = low + torch.rand(200, 2, generator=torch.Generator().manual_seed(i)) * (high - low)
        with torch.no_grad():
            reached = (program(points).double() @ c.T + d).amin(1).max()
        assert together[i] >= reached - 1e-5


def test_boxes_with_other_numbers_of_cases_are_not_mixed_up() -> None:
    text = disjunction(5, 0.05)
    shorter = text.replace(text.splitlines()[6] + "\n", "").replace(text.splitlines()[9] + "\n", "")
    problem = problem_of(shorter)
    asked = FormulaCases.of(problem, members_of(problem), lambda _: False).tensors
    assert len(asked) == 8 and sorted(torch.bincount(asked.box).tolist()) == [1, 1, 2, 2, 2]
    whole = problem_of(text)
    every = FormulaCases.of(whole, members_of(whole), lambda _: False).tensors
    bounds = bounds_by_box(whole.network.program, every, "crown", Soundness.REAL)
    kept = [i for i in range(10) if i not in (2, 5)]  # the choices begin at line 4
    assert torch.allclose(
        bounds_by_box(problem.network.program, asked, "crown", Soundness.REAL), bounds[kept], atol=1e-6
    )


def test_what_time_cuts_is_not_bounded() -> None:
    problem = problem_of(disjunction(3, 0.05))
    asked = FormulaCases.of(problem, members_of(problem), lambda _: False).tensors
    late = bounds_by_box(problem.network.program, asked, "interval", Soundness.REAL, time.monotonic() - 1)
    assert late.tolist() == [math.inf] * 6


def test_boxes_are_rounded_like_the_whole() -> None:
    problem = problem_of(disjunction(20, 0.05))
    members = members_of(problem)
    (lower, upper), (least, most) = boxes_of(members, problem)
    for i, case in enumerate(members):
        low, high = list(problem.lower), list(problem.upper)
        for ends, changes in ((low, case.lower), (high, case.upper)):
            for place, value in changes:
                ends[place] = value
        for found, expected in zip(
            (lower, upper, least, most), (*outer_float32(low, high), *inner_box(low, high)), strict=True
        ):
            assert found[i].flatten().tolist() == expected.tolist()


def test_a_case_has_the_closest_of_its_bounds_and_no_empty_box() -> None:
    bounds = "(>= X_0 0) (>= X_0 0.25) (>= X_0 -2) (<= X_0 0.75) (<= X_0 0.5) (<= X_0 3)"
    empty = "(>= X_0 0.5) (<= X_0 0.25) (>= Y_0 8)"
    text = HEAD + "".join(f"(assert (>= X_{i} -1))(assert (<= X_{i} 1))" for i in (0, 1))
    problem = problem_of(text + f"(assert (or (and {bounds} (>= Y_0 9)) (and {empty}) (and (= X_1 1) (<= Y_0 -9))))")
    first, second = members_of(problem)
    assert (first.lower, first.upper) == (((0, Fraction(1, 4)),), ((0, Fraction(1, 2)),))
    assert (second.lower, second.upper) == (((1, Fraction(1)),), ())
    assert [len(case.rows) for case in (first, second)] == [1, 1]


def test_a_case_without_rows_holds_everywhere_in_its_box() -> None:
    sides = "(>= X_0 0.25) (<= X_0 0.5) (>= X_1 0) (<= X_1 1)"
    problem = problem_of(HEAD + f"(assert (or (and {sides} (>= Y_0 9) (<= Y_0 20)) (and {sides})))")
    asked = FormulaCases.of(problem, members_of(problem), lambda _: False).tensors
    assert asked.valid.tolist() == [[True, True], [True, False]]
    assert asked.smallest(torch.zeros(1, 1))[1] > 0
    for method in ("interval", "crown"):
        assert bounds_by_box(problem.network.program, asked, method, Soundness.DEPLOYED)[1] > 0


def test_the_box_in_which_most_varies_counts() -> None:
    sides = ("(= X_0 0.5) (>= X_1 0) (<= X_1 1)", "(= X_1 0.5) (>= X_0 0) (<= X_0 1)")
    text = HEAD + "(assert (or " + " ".join(f"(and {side} (>= Y_0 9))" for side in sides) + "))"
    problem = problem_of(text)
    asked = FormulaCases.of(problem, members_of(problem), lambda _: False).tensors
    assert varying_most(asked) == 1


@pytest.mark.parametrize("margin", [0.5, 0.004])
def test_many_boxes_are_proved(margin: float) -> None:
    text = disjunction(60, margin)
    found = decide(parse_query(text), {"N": NET}, 100)
    assert found.status is (Status.ROBUST if margin == 0.5 else found.status)
    assert found.status in (Status.ROBUST, Status.FALSIFIED)
    if found.status is Status.FALSIFIED:  # 16 points do not show the whole range
        assert found.assignment["Y"].size == 1


@pytest.mark.parametrize("wrong", [0, 37, 299])
def test_the_one_box_of_hundreds_that_can_be_reached_is_found(wrong: int) -> None:
    text = disjunction(300, 0.5, wrong=wrong)
    found = decide(parse_query(text), {"N": NET}, 100)
    assert found.status is Status.FALSIFIED
    x, y = found.assignment["X"].reshape(-1), float(found.assignment["Y"].item())
    assert y == pytest.approx(values(x[None])[0], abs=1e-5)
    choices = text.splitlines()[4 + 2 * wrong : 6 + 2 * wrong]
    numbers = [
        [float(word.strip("()")) for word in line.split() if word.strip("()-")[:1].isdigit()] for line in choices
    ]
    assert numbers[0][0] - 1e-6 <= x[0] <= numbers[0][1] + 1e-6 and numbers[0][2] - 1e-6 <= x[1] <= numbers[0][3] + 1e-6
    assert y <= numbers[0][4] or y >= numbers[1][4]


def test_coefficients_are_exact_or_refused() -> None:
    def scaled(*numbers: str) -> list[float]:
        atom = Atom(tuple((i, Fraction(number)) for i, number in enumerate(numbers)), Fraction(1))
        c, d = coefficients([atom], {0: 0, 1: 1}, 2)
        assert d.item() > 0
        return c[0].tolist()

    assert scaled("1/3", "0.1") == [10.0, 3.0]
    assert scaled("123456789012345678", "0") == [1.0, 0.0]
    for numbers in (("0.1234567890123456789", "1"), ("123456789012345678", "1"), ("1e-30", "1")):
        with pytest.raises(QueryError, match="no common scale"):
            scaled(*numbers)


def test_hashes_of_equal_atoms_are_equal() -> None:
    first, second = (Atom(((3, Fraction(1, 2)), (5, Fraction(-1))), Fraction(value), True) for value in ("0.25", "1/4"))
    assert first == second and hash(first) == hash(second)
    assert len({first, second, Atom(first.terms, first.constant)}) == 2
