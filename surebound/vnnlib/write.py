"""Queries as VNN-LIB text, version 1.0 or 2.0, and the ones that our own results are about."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from torch import Tensor

from surebound.errors import QueryError
from surebound.numerics import exact_fraction
from surebound.spec.formula import All, Any, AtLeast, Atom, Formula, Sum, comparison
from surebound.vnnlib.query import Kind, Network, Query, Variable


def robustness_query(
    image: Tensor,
    label: int,
    classes: int,
    eps: str | int | float | Fraction,
    *,
    clip: tuple[float, float] | None = (0.0, 1.0),
    dtype: str = "float32",
) -> Query:
    """Is there an input within eps of the image (C, H, W) for which another class is at least as large as the label's?

    Its answer is unsat where the image is robust. The radius and the image's float32 numbers are kept exact.
    """
    if not 0 <= label < classes:
        raise QueryError(f"label {label} of {classes} classes")
    radius = exact_fraction(eps)
    x = Variable("X", dtype, (1, *image.shape), Kind.INPUT, 0)
    y = Variable("Y", dtype, (1, classes), Kind.OUTPUT, x.size)
    parts: list[Formula] = []
    for place, value in enumerate(image.detach().float().reshape(-1).tolist()):
        low, high = Fraction(value) - radius, Fraction(value) + radius
        if clip is not None:
            low, high = max(low, exact_fraction(clip[0])), min(high, exact_fraction(clip[1]))
        one = Fraction(1)
        parts += [Atom(((place, one),), -low), Atom(((place, -one),), high)]
    others = [k for k in range(classes) if k != label]
    element = [Sum(terms={y.first + k: Fraction(1)}) for k in range(classes)]
    parts.append(Any(tuple(comparison(">=", element[k], element[label]) for k in others)))
    return Query((Network("N", (x,), (), (y,)),), All(tuple(parts)), "2.0")


def write_query(query: Query, version: str = "2.0", *, comment: str = "") -> str:
    """Return the text of a query; numbers without a finite decimal form are rounded outwards, and only in bounds."""
    if version not in ("1.0", "2.0"):
        raise QueryError(f"VNN-LIB {version!r}; 1.0 and 2.0 can be written")
    lines = [f"; {line}" for line in comment.splitlines()]
    names = _names_1(query) if version == "1.0" else _names_2(query)
    lines += [f"(declare-const {name} Real)" for name in names] if version == "1.0" else _declared_2(query)
    habit = _disjuncts_in_and if version == "1.0" else lambda formula: formula
    lines += [f"(assert {_formula(habit(part), names)})" for part in query.formula.parts]
    return "\n".join(lines) + "\n"


def _names_1(query: Query) -> list[str]:
    network = query.networks[0]
    plain = len(query.networks) == 1 and len(network.inputs) == len(network.outputs) == 1 and not network.hidden
    if not plain:
        raise QueryError("VNN-LIB 1.0 has one network with one input and one output; write version 2.0")
    return [f"X_{i}" for i in range(network.inputs[0].size)] + [f"Y_{i}" for i in range(network.outputs[0].size)]


def _names_2(query: Query) -> list[str]:
    names = []
    for variable in query.variables:
        if not variable.shape:
            names.append(variable.name)
            continue
        for index in np.ndindex(*variable.shape):
            names.append(f"{variable.name}[{','.join(str(i) for i in index)}]")
    return names


def _declared_2(query: Query) -> list[str]:
    lines = ["(vnnlib-version <2.0>)"]
    for network in query.networks:
        lines.append(f"(declare-network {network.name}")
        lines += [f"  (equal-to {network.equal_to})"] if network.equal_to else []
        lines += [f"  (isomorphic-to {network.isomorphic_to})"] if network.isomorphic_to else []
        for each in network.variables:
            shape = "[" + ", ".join(str(n) for n in each.shape) + "]"
            node = "" if each.node is None else ' "' + each.node.replace("\\", "\\\\").replace('"', '\\"') + '"'
            lines.append(f"  (declare-{each.kind.value} {each.name} {each.dtype} {shape}{node})")
        lines.append(")")
    return lines


def _disjuncts_in_and(formula: Formula) -> Formula:
    """Write (or (and a) (and b)), not (or a b), as the competitions' files do: some tools read nothing else."""
    if not isinstance(formula, Any):
        return formula
    return Any(tuple(part if isinstance(part, All) else All((part,)) for part in formula.parts))


def _formula(formula: Formula, names: list[str]) -> str:
    if isinstance(formula, Atom):
        return _atom(formula, names)
    if isinstance(formula, AtLeast):
        raise QueryError("VNN-LIB has no counting; write the combinations out")
    if not formula.parts:
        raise QueryError("an empty conjunction or disjunction cannot be written")
    word = "and" if isinstance(formula, All) else "or"
    return f"({word} {' '.join(_formula(part, names) for part in formula.parts)})"


def _atom(atom: Atom, names: list[str]) -> str:
    if not atom.terms:
        raise QueryError("a constraint without variables cannot be written")
    above, below = (">", "<") if atom.strict else (">=", "<=")
    if len(atom.terms) == 1:
        (element, coefficient), bound = atom.terms[0], -atom.constant / atom.terms[0][1]
        relation = above if coefficient > 0 else below
        return f"({relation} {names[element]} {_outward(bound, down=coefficient > 0)})"
    if len(atom.terms) == 2 and atom.constant == 0 and {c for _, c in atom.terms} == {Fraction(1), Fraction(-1)}:
        left, right = sorted(atom.terms, key=lambda term: -term[1])
        return f"({above} {names[left[0]]} {names[right[0]]})"
    terms = " ".join(f"(* {_exact(c)} {names[e]})" for e, c in atom.terms)
    total = f"(+ {terms})" if len(atom.terms) > 1 else terms
    return f"({above} {total} {_exact(-atom.constant)})"


def _exact(value: Fraction) -> str:
    """Return a decimal numeral of exactly this value."""
    text = _outward(value, down=True)
    if Fraction(text) != value:
        raise QueryError(f"{value} has no finite decimal numeral; scale the constraint")
    return text


#: Digits behind the point of a number that has no finite decimal form.
_DIGITS = 40


def _outward(value: Fraction, *, down: bool) -> str:
    """Return a decimal numeral: exact if there is one, else the next one outwards, so that no assignment is lost."""
    power = _decimals(value.denominator)
    digits = _DIGITS if power is None else power
    scaled = value * 10**digits
    whole = scaled.numerator // scaled.denominator if down else -(-scaled.numerator // scaled.denominator)
    sign, text = ("-" if whole < 0 else ""), str(abs(whole)).rjust(digits + 1, "0")
    point = len(text) - digits
    return f"{sign}{text[:point]}.{text[point:] or '0'}"


def _decimals(denominator: int) -> int | None:
    """Count the decimals of a fraction with this denominator; None: infinitely many."""
    twos = fives = 0
    while denominator % 2 == 0:
        denominator, twos = denominator // 2, twos + 1
    while denominator % 5 == 0:
        denominator, fives = denominator // 5, fives + 1
    return max(twos, fives) if denominator == 1 else None
