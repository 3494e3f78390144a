"""What assertions say of inputs: strict and non-strict ends, alternatives, contradictions."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

from surebound.errors import QueryError
from surebound.spec.formula import All, Any, Atom, Formula
from surebound.verdict import Status
from surebound.vnnlib.domain import bounds, places, unify
from surebound.vnnlib.solve import decide
from surebound.vnnlib.text import parse_query
from surebound.vnnlib.witness import holds
from tests.vnnlib.nets import IDENTITY, SUM, VERSION, between, declare, model

OLD = "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)(declare-const Y_1 Real)"
BOX = "(assert (>= X_0 0.0))(assert (<= X_0 1.0))(assert (>= X_1 0.0))(assert (<= X_1 1.0))"


def box(text: str) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...], Formula]:
    query = parse_query(text)
    formula, alias = unify(query)
    return bounds(query, formula, places(alias))


@pytest.mark.parametrize(("relation", "strict"), [("<=", False), ("<", True), (">=", False), (">", True)])
@pytest.mark.parametrize("form", ["(assert ({} Y_0 0.25))", "(assert ({} (+ Y_0 0.0) 0.25))"])
def test_strictness_is_read_from_either_form(relation: str, strict: bool, form: str) -> None:
    query = parse_query(OLD + BOX + form.format(relation))
    atom = query.formula.parts[-1]
    assert isinstance(atom, Atom)
    sign = -1 if relation[0] == "<" else 1
    assert atom == Atom(((2, Fraction(sign)),), Fraction(-sign, 4), strict)


@pytest.mark.parametrize(
    ("assertion", "verdict"),
    [
        (">= Y_0 1.0", Status.FALSIFIED),
        ("> Y_0 1.0", Status.ROBUST),
        ("<= Y_0 0.0", Status.FALSIFIED),
        ("< Y_0 0.0", Status.ROBUST),
    ],
)
def test_the_end_itself_is_excluded_by_strict_relations(assertion: str, verdict: Status) -> None:
    assert decide(parse_query(f"{OLD}{BOX}(assert ({assertion}))"), {"N": model(IDENTITY)}, 10).status is verdict


@pytest.mark.parametrize("dtype", ["float32", "real"])
@pytest.mark.parametrize(
    ("assertions", "verdict"),
    [
        ("(assert (> X[0,0] 0.5))(assert (<= X[0,0] 0.5))", Status.ROBUST),
        ("(assert (>= X[0,0] 0.5))(assert (< X[0,0] 0.5))", Status.ROBUST),
        ("(assert (> X[0,0] 0.1))(assert (<= X[0,0] 0.1))", Status.ROBUST),  # no float32 is 0.1
        ("(assert (> X[0,0] 0.75))(assert (<= X[0,0] 0.5))", Status.ROBUST),
        ("(assert (>= X[0,0] 0.5))(assert (<= X[0,0] 0.5))", Status.FALSIFIED),
        ("(assert (> X[0,0] 0.25))(assert (<= X[0,0] 0.5))(assert (>= X[0,0] 0.5))", Status.FALSIFIED),
        ("(assert (> X[0,0] 0.25))(assert (<= X[0,0] 0.5))", Status.FALSIFIED),  # an open end beside an interval
        ("(assert (< X[0,0] 0.25))(assert (>= X[0,0] 0.125))", Status.FALSIFIED),
    ],
)
def test_contradictions_about_an_input_are_unsat(assertions: str, verdict: Status, dtype: str) -> None:
    text = VERSION + declare(2, 1, dtype) + between([0, 0], [1, 1]) + assertions + "(assert (>= Y[0,0] 0.0))"
    assert decide(parse_query(text), {"N": model(SUM)}, 10).status is verdict


def test_inputs_are_one_only_if_both_inequalities_are_asserted() -> None:
    """One of them leaves points where the inputs differ."""
    text = VERSION + declare(2, 1) + between([0, 0], [1, 1])
    for assertions, names in (
        ("(assert (<= X[0,0] X[0,1]))", 2),
        ("(assert (<= X[0,0] X[0,1]))(assert (> X[0,0] X[0,1]))", 2),
        ("(assert (<= X[0,0] X[0,1]))(assert (>= X[0,0] X[0,1]))", 1),
        ("(assert (== X[0,0] X[0,1]))", 1),
    ):
        assert len(set(unify(parse_query(text + assertions))[1].values())) == names, assertions
    apart = "(assert (<= X[0,0] X[0,1]))(assert (<= X[0,0] 0.25))(assert (>= Y[0,0] 1.0))"  # 1/4 + 1, but not 1/4 + 1/4
    assert decide(parse_query(text + apart), {"N": model(SUM)}, 10).status is Status.FALSIFIED


def test_a_query_is_about_reals_only_if_all_of_it_is() -> None:
    for first, second, exact in (("real", "real", True), ("real", "float32", False), ("float32", "real", False)):
        text = VERSION + declare(2, 1, first) + declare(2, 1, second, "M", "Z", "W")
        query = parse_query(text + between([0, 0], [1, 1]) + between([0, 0], [1, 1], "Z"))
        assert query.exact_type == exact


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_satisfies_nothing(odd: float) -> None:
    for sign in (1, -1):
        assert not holds(Atom(((0, Fraction(sign)),), Fraction(0), False), lambda element: np.float32(odd))
        assert not holds(Atom(((0, Fraction(sign)),), Fraction(0), False), lambda element: None)


def test_alternatives_bound_an_input_only_if_each_of_them_does() -> None:
    other = "(assert (>= X_1 0.0))(assert (<= X_1 1.0))"
    low, high, rest = box(
        f"{OLD}{other}(assert (or (and (>= X_0 0.25) (<= X_0 0.5)) (and (>= X_0 -1.0) (<= X_0 0.125))))"
    )
    assert (low[0], high[0]) == (-1, Fraction(1, 2))
    assert isinstance(rest, All) and isinstance(rest.parts[0], Any)  # which alternative it is, is still asked
    for one, side in (("(<= X_0 0.125)", "below"), ("(>= X_0 -1.0)", "above")):
        for parts in (
            f"(and (>= X_0 0.25) (<= X_0 0.5)) (and {one})",
            f"(and {one}) (and (>= X_0 0.25) (<= X_0 0.5))",
        ):
            with pytest.raises(QueryError, match=rf"X\[0\] is not bounded {side}"):
                box(f"{OLD}{other}(assert (or {parts}))")


@pytest.mark.parametrize(
    "text",
    [OLD + BOX + "(assert (or (and (<= Y_0 -1.5e-2) (> X_1 .5)) (>= X_0 1.)))", OLD + BOX + "(assert (< Y_0 +2))"],
)
def test_what_is_written_plainly_is_read_like_what_is_not(text: str) -> None:
    """Long files are read by three expressions; a comment, or words of another order, takes the long way."""
    plain = parse_query(text)
    spread = parse_query(text.replace("(", " ( ").replace(")", "\n)\n").replace("assert", "; all of it\nassert"))
    mirrored = parse_query(re.sub(r"\(([<>]=?) (\w+) (\S+?)\)", lambda m: f"({_TURNED[m[1]]} {m[3]} {m[2]})", text))
    assert plain == spread == mirrored


@pytest.mark.parametrize("dtype", ["float32", "real"])
@pytest.mark.parametrize(
    ("assertions", "verdict"),
    [
        # 0.25 <= y <= x <= 1, as queries about monotone networks have it
        ("(assert (and (>= X[0,0] X[0,1]) (>= X[0,1] 0.25)))(assert (>= Y[0,0] 2.0))", Status.FALSIFIED),
        ("(assert (and (>= X[0,0] X[0,1]) (>= X[0,1] 0.25)))(assert (> Y[0,0] 2.01))", Status.ROBUST),
        ("(assert (and (>= X[0,0] X[0,1]) (>= X[0,1] 0.25)))(assert (< Y[0,0] 0.49))", Status.ROBUST),
        # -1 <= y with x + 2 y <= 1: y <= 1/2
        ("(assert (and (<= (+ X[0,0] (* 2.0 X[0,1])) 1.0) (>= X[0,1] -1.0)))(assert (> Y[0,0] 1.01))", Status.ROBUST),
        (
            "(assert (and (<= (+ X[0,0] (* 2.0 X[0,1])) 1.0) (>= X[0,1] -1.0)))(assert (>= Y[0,0] 0.9))",
            Status.FALSIFIED,
        ),
    ],
)
def test_ends_that_follow_from_other_inputs(assertions: str, verdict: Status, dtype: str) -> None:
    text = VERSION + declare(2, 1, dtype) + "(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0)))" + assertions
    assert decide(parse_query(text), {"N": model(SUM)}, timeout=120).status is verdict


def test_ends_that_follow_are_exact() -> None:
    def ends(more: str) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
        text = VERSION + declare(3, 1) + "(assert (and (>= X[0,0] 0.1) (<= X[0,0] 0.7)))" + more
        return box(text)[:2]

    tenth = Fraction(1, 10)
    # a chain, read against its order: z <= 3 y + 0.2 <= ..., y <= -x
    chain = "(assert (<= X[0,2] (+ 0.2 (* 3.0 X[0,1]))))(assert (<= X[0,1] (- X[0,0])))"
    below = "(assert (>= X[0,1] (- X[0,0] 2.0)))(assert (>= (* 2.0 X[0,2]) X[0,1]))"
    low, high = ends(chain + below)
    assert low == (tenth, -19 * tenth, Fraction(-19, 20)) and high == (7 * tenth, -tenth, -tenth)
    for missing in (
        "(assert (<= X[0,1] X[0,2]))" + below,
        "(assert (or (<= X[0,1] X[0,0]) (<= X[0,2] X[0,0])))" + below,
    ):
        with pytest.raises(QueryError, match="is not bounded above"):
            ends(missing)


def test_a_sign_before_a_variable_is_read() -> None:
    signed = parse_query(OLD + BOX + "(assert (or (and (<= Y_0 -Y_1) (>= +Y_0 0.5))))")
    spelt = parse_query(OLD + BOX + "(assert (and (<= Y_0 (- Y_1)) (>= Y_0 0.5)))")
    assert signed == spelt
    for mistake in ("--Y_1", "-Y", "- Y_1", "-1Y_1"):
        with pytest.raises(QueryError):
            parse_query(OLD + BOX + f"(assert (<= Y_0 {mistake}))")


_TURNED = {"<=": ">=", ">=": "<=", "<": ">", ">": "<"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OLD + BOX + "(assert (<= X_2 1))", "X_2 is used but not declared"),
        (OLD + BOX + "(assert (or (<= X_2 1) (>= Y_0 1)))", "X_2 is used but not declared"),
        (OLD + "(declare-const X_1 Real)", "X_1 is declared twice"),
        (OLD + BOX + "(declare-const X_2 Real)", "before any assertion"),
        (OLD + "(declare-const X_7 Real)" + BOX, "without gaps"),
        (OLD + BOX + "(assert (<= X_0 1.0.0))", "no linear expression"),
        (OLD + BOX + "(assert (<= X_0 1e500))", "is no number"),
        (OLD + BOX + "(assert (<= X_0 1.0) (<= X_1 1.0))", "after the end of assert"),
        (OLD + BOX + "(assert (<= X_0 1.0)", "in the middle of a command"),
        (OLD + BOX + "Output constraints:", "outside of any command"),
    ],
)
def test_mistakes_in_plain_lines_are_refused(text: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        parse_query(text)
