"""Queries about networks that cut, read or write at positions which their input names as whole numbers.

Such a network has no one graph. Cut to a whole number k, an input is constant from k up to the next one: so the query
is one case per combination of whole numbers, each with a box and a graph of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from surebound.errors import DataDependentError
from surebound.graph.onnx.file import Model
from surebound.search.problem import inner_box
from surebound.spec.formula import All, Atom
from surebound.vnnlib.domain import bounds, places, unify
from surebound.vnnlib.problem import QueryProblem, build, run, sessions
from surebound.vnnlib.products import exactly
from surebound.vnnlib.query import Query
from surebound.vnnlib.witness import Assignment, Judge, holds

#: Most cases that a query is taken apart into.
MOST_CASES = 100_000

Cell = tuple[int, Fraction, Fraction]  # a whole number, and the inputs that are cut to it: from, to


def cells(low: Fraction, high: Fraction) -> list[Cell]:
    """Return the whole numbers that inputs between two ends are cut to, towards 0, each with its inputs.

    >>> cells(Fraction(-3, 2), Fraction(1))
    [(-1, Fraction(-3, 2), Fraction(-1, 1)), (0, Fraction(-1, 1), Fraction(1, 1)), (1, Fraction(1, 1), Fraction(1, 1))]
    """
    found = []
    for k in range(math.trunc(low), math.trunc(high) + 1):
        first = Fraction(k - 1 if k <= 0 else k)
        last = Fraction(k + 1 if k >= 0 else k)
        found.append((k, max(low, first), min(high, last)))
    return found


@dataclass(frozen=True, eq=False)
class Positions:
    """The cases of a query, in an order of chance."""

    query: Query
    models: Mapping[str, Model]
    elements: tuple[int, ...]  # an element for each place that positions are read from
    places: tuple[int, ...]
    cases: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(cls, query: Query, models: Mapping[str, Model], error: DataDependentError, seed: int) -> Positions:
        """Take a query apart by the inputs that the error names; raises it if there are too many cases."""
        formula, alias = unify(query)
        at = places(alias)
        lower, upper, _ = bounds(query, formula, at)
        element = {place: e for e, place in sorted(at.items(), reverse=True)}
        known: frozenset[int] = frozenset()
        while not error.places <= known:  # behind the first position there may be others
            known |= error.places
            chosen = tuple(sorted(known))
            counts = [math.trunc(upper[place]) - math.trunc(lower[place]) + 1 for place in chosen]
            if math.prod(counts) > MOST_CASES or min(counts) < 1:
                raise error
            found = list(itertools.product(*(cells(lower[place], upper[place]) for place in chosen)))
            order = np.random.default_rng(seed).permutation(len(found))
            cases = tuple(found[i] for i in order)
            made = cls(query, models, tuple(element[p] for p in chosen), chosen, cases)
            try:
                made._problem(cases[0])
            except DataDependentError as another:
                error = another
            else:
                return made
        raise error

    def problems(self) -> Iterator[QueryProblem]:
        """Build the cases one by one."""
        return (self._problem(case) for case in self.cases)

    def _problem(self, case: tuple[Cell, ...]) -> QueryProblem:
        one = Fraction(1)
        box = [
            atom
            for element, (_, low, high) in zip(self.elements, case, strict=True)
            for atom in (Atom(((element, one),), -low), Atom(((element, -one),), high))
        ]
        query = dataclasses.replace(self.query, formula=All((*self.query.formula.parts, *box)))
        return build(query, self.models, {place: k for place, (k, _, _) in zip(self.places, case, strict=True)})

    def falsified(self, deadline: float) -> Assignment | None:
        """Run the middle of every case in onnxruntime until one holds there and, built, in our evaluation."""
        first = self._problem(self.cases[0])
        running, shape = sessions(first), first.whole.shape
        low, high = inner_box(first.lower, first.upper)
        x = np.clip(low / 2 + high / 2, low, high)
        for case in self.cases:
            if time.monotonic() > deadline:
                return None
            for place, (k, least, most) in zip(self.places, case, strict=True):
                x[place] = float(min(max(Fraction(k), least), most))
            point = torch.from_numpy(x.reshape(shape).copy())
            if self._holds(first, run(first, running, point)):
                found = Judge(self._problem(case))(point)
                if found is not None:
                    return found
        return None

    def _holds(self, problem: QueryProblem, found: Assignment) -> bool:
        """Does what is asked beside the box hold? The judge looks at all of it."""
        whole = np.concatenate([found[each.name].reshape(-1) for each in self.query.variables])
        value = exactly(lambda element: whole[element], self.query.pairs)
        return holds(problem.formula, value, problem.inputs)
