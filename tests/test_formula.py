"""Comparisons as formulas: what is strict stays strict, and "not equal" is either side."""

from __future__ import annotations

from fractions import Fraction

import pytest

from surebound.spec.formula import All, Any, Atom, Formula, Sum, comparison

ONE = Fraction(1)


def true(formula: Formula, x: Fraction) -> bool:
    """Evaluate a formula of one element."""
    if isinstance(formula, Atom):
        total = sum((coefficient * x for _, coefficient in formula.terms), formula.constant)
        return total > 0 or (total == 0 and not formula.strict)
    found = [true(part, x) for part in formula.parts]
    return all(found) if isinstance(formula, All) else any(found)


@pytest.mark.parametrize("relation", ["<=", "<", ">=", ">", "==", "=", "!="])
def test_a_comparison_is_its_formula(relation: str) -> None:
    found = comparison(relation, Sum(terms={0: ONE}), Sum(Fraction(2)))  # x against 2
    python = {
        "<=": lambda x: x <= 2,
        "<": lambda x: x < 2,
        ">=": lambda x: x >= 2,
        ">": lambda x: x > 2,
        "==": lambda x: x == 2,
        "=": lambda x: x == 2,
        "!=": lambda x: x != 2,
    }[relation]
    for x in (Fraction(1), Fraction(2), Fraction(3)):
        assert true(found, x) == python(x)
    assert isinstance(found, {"==": All, "=": All, "!=": Any}.get(relation, Atom))
