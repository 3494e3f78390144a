"""Queries read back in plain words."""

from __future__ import annotations

from surebound.cli.explain import query_question
from surebound.vnnlib import parse_query

QUERY = """
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (>= X_0 -0.5))
(assert (<= X_0 0.5))
(assert (>= X_1 0))
(assert (<= X_1 1))
(assert (or (and (>= Y_0 Y_1)) (and (<= Y_1 2.5))))
"""


def test_a_query_in_words() -> None:
    told = query_question(parse_query(QUERY))
    assert max(map(len, told.splitlines())) < 80
    text = " ".join(told.split())
    assert "2 numbers in, 2 out question are there inputs with X_0 >= -0.5 and 0.5 >= X_0 and X_1 >= 0" in text
    assert "such that" in text and "Y_0 >= Y_1" in text and " or " in text and "2.5 >= Y_1" in text
    assert " sat such inputs were found" in text and " unsat there are none" in text


def test_many_conditions_are_counted() -> None:
    names = "".join(f"(declare-const {name} Real)" for name in (*(f"X_{i}" for i in range(9)), "Y_0"))
    box = "".join(f"(assert (>= X_{i} 0))(assert (<= X_{i} 1))" for i in range(9))
    text = query_question(parse_query(f"{names}{box}(assert (>= Y_0 0))"))
    assert "and 10 more conditions" in " ".join(text.split())
