"""Formulas: and/or trees of linear constraints over numbered quantities, all of it exact.

Queries that others wrote and specifications made in Python both become this; one engine (formulas) decides
whether a formula can hold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from surebound.errors import QueryError


@dataclass(frozen=True)
class Atom:
    """sum of coefficient * element + constant >= 0, or > 0 if ``strict``; elements ascend, no coefficient is 0."""

    terms: tuple[tuple[int, Fraction], ...]
    constant: Fraction
    strict: bool = False

    def __hash__(self) -> int:
        """Hash whole numbers: a fraction's own hash is a modular power, and queries have millions of atoms."""
        sides = (self.constant.numerator, self.constant.denominator, self.strict)
        return hash((*sides, *((element, value.numerator) for element, value in self.terms)))

    @property
    def truth(self) -> bool | None:
        """Its truth if it has no variables."""
        if self.terms:
            return None
        return self.constant > 0 if self.strict else self.constant >= 0

    @property
    def opposite(self) -> Atom:
        """What holds exactly where this one does not."""
        return Atom(tuple((e, -c) for e, c in self.terms), -self.constant, not self.strict)


@dataclass(frozen=True)
class All:
    """Every part holds; true without parts."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True)
class Any:
    """Some part holds; false without parts."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True)
class AtLeast:
    """At least ``count`` of the parts hold."""

    count: int
    parts: tuple[Formula, ...]


Formula = Atom | All | Any | AtLeast


def rebuilt(formula: All | Any | AtLeast, parts: tuple[Formula, ...]) -> Formula:
    """Return a node of the same kind with other parts."""
    if isinstance(formula, AtLeast):
        return AtLeast(formula.count, parts)
    return type(formula)(parts)


def opposite(formula: Formula) -> Formula:
    """Return what holds exactly where the formula does not.

    >>> opposite(Any((Atom(((0, Fraction(1)),), Fraction(0)),)))
    All(parts=(Atom(terms=((0, Fraction(-1, 1)),), constant=Fraction(0, 1), strict=True),))
    """
    if isinstance(formula, Atom):
        return formula.opposite
    parts = tuple(opposite(part) for part in formula.parts)
    if isinstance(formula, AtLeast):
        return AtLeast(len(parts) - formula.count + 1, parts)
    return Any(parts) if isinstance(formula, All) else All(parts)


def holds(formula: Formula, true: Callable[[Atom], bool]) -> bool:
    """Does a formula hold, if ``true`` says which atoms do?"""
    if isinstance(formula, Atom):
        return true(formula)
    results = (holds(part, true) for part in formula.parts)
    if isinstance(formula, AtLeast):
        return sum(results) >= formula.count
    return all(results) if isinstance(formula, All) else any(results)


def renamed(formula: Formula, alias: Mapping[int, int]) -> Formula:
    """Return the formula with elements under other numbers."""
    if isinstance(formula, Atom):
        terms: dict[int, Fraction] = {}
        for element, coefficient in formula.terms:
            name = alias.get(element, element)
            terms[name] = terms.get(name, Fraction(0)) + coefficient
        return Atom(tuple(sorted((e, c) for e, c in terms.items() if c)), formula.constant, formula.strict)
    return rebuilt(formula, tuple(renamed(part, alias) for part in formula.parts))


def as_bound(atom: Atom, inputs: Mapping[int, int]) -> tuple[int, Fraction, bool] | None:
    """Return a constraint on one input alone, as (place, bound, is it a lower bound?)."""
    if len(atom.terms) != 1 or atom.terms[0][0] not in inputs:
        return None
    element, coefficient = atom.terms[0]
    if coefficient == 1:  # here and below: what long queries consist of, without a division
        return inputs[element], -atom.constant, True
    if coefficient == -1:
        return inputs[element], atom.constant, False
    return inputs[element], -atom.constant / coefficient, coefficient > 0


class Sum:
    """A linear expression in the making."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: Fraction = Fraction(0), terms: dict[int, Fraction] | None = None) -> None:
        self.constant, self.terms = constant, {} if terms is None else terms

    def plus(self, other: Sum, factor: Fraction | int = 1) -> Sum:
        """This plus a multiple of another."""
        terms = dict(self.terms)
        for element, coefficient in other.terms.items():
            terms[element] = terms.get(element, Fraction(0)) + factor * coefficient
        return Sum(self.constant + factor * other.constant, terms)

    def times(self, other: Sum) -> Sum:
        """Return the product; one of the two must be a number."""
        a, b = (self, other) if not other.terms else (other, self)
        if b.terms:
            raise QueryError("a product of two variables; only linear arithmetic is supported")
        return Sum(a.constant * b.constant, {e: c * b.constant for e, c in a.terms.items()})

    def atom(self, strict: bool) -> Atom:
        """This >= 0, or > 0."""
        terms = tuple(sorted((e, c) for e, c in self.terms.items() if c))
        return Atom(terms, self.constant, strict)


def folded(parts: Sequence[Sum], factor: int = 1) -> Sum:
    """Return the first plus ``factor`` times each of the others."""
    return functools.reduce(lambda total, each: total.plus(each, factor), parts)


def comparison(relation: str, left: Sum, right: Sum) -> Formula:
    """Return ``left relation right`` as a formula; the relation is one of <= < >= > == = !=."""
    more, less = left.plus(right, -1), right.plus(left, -1)
    if relation in ("<=", "<"):
        return less.atom(relation == "<")
    if relation in (">=", ">"):
        return more.atom(relation == ">")
    if relation in ("==", "="):
        return All((less.atom(False), more.atom(False)))
    if relation == "!=":
        return Any((less.atom(True), more.atom(True)))
    raise QueryError(f"{relation!r} is no comparison; use <=, <, >=, >, == or !=")


def atoms(formula: Formula) -> Iterator[Atom]:
    """Return every atom of a formula, in order, with repetitions."""
    stack = [formula]
    while stack:
        part = stack.pop()
        if isinstance(part, Atom):
            yield part
        else:
            stack.extend(reversed(part.parts))
