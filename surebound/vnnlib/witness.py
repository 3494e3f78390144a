"""Is a point an answer? Only if the formula holds there in exact arithmetic on what two programs computed in float32.

Both onnxruntime and our own evaluation of the imported network are asked, and both must agree that the point satisfies
the query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from surebound.spec.formula import Atom, Formula, as_bound
from surebound.spec.formula import holds as formula_holds
from surebound.vnnlib.problem import QueryProblem, run, sessions
from surebound.vnnlib.products import exactly
from surebound.vnnlib.runtime import Array, Session

Assignment = dict[str, Array]
ValueOf = Callable[[int], np.float32 | Fraction | None]


class Judge:
    """Checks candidates of one problem."""

    def __init__(self, problem: QueryProblem) -> None:
        self._problem = problem
        self._sessions: dict[str, Session] | None = None

    def __call__(self, x: Tensor) -> Assignment | None:
        """Return the assignment at x (1, *input) float32, if it satisfies the query."""
        problem = self._problem
        if x.dtype != torch.float32 or not bool(x.isfinite().all()):
            return None
        flat = x.detach().reshape(-1).numpy()
        with torch.no_grad():
            ours = problem.network(x)[0].numpy()
        values = {element: flat[place] for element, place in problem.inputs.items()}
        known = values | {element: ours[column] for element, column in problem.columns.items()}
        pairs = problem.query.pairs
        if not holds(problem.formula, exactly(known.get, pairs), problem.inputs):
            return None
        if self._sessions is None:
            self._sessions = sessions(problem)
        found = run(problem, self._sessions, x)
        whole = np.concatenate([found[each.name].reshape(-1) for each in problem.query.variables])
        if not holds(problem.query.formula, exactly(lambda element: whole[element], pairs), problem.inputs):
            return None
        return found


def holds(formula: Formula, value: ValueOf, inputs: Mapping[int, int] | None = None) -> bool:
    """Does a formula hold for these float32 numbers and exact products of them, in exact arithmetic?

    A bound of a single input also holds where the input is the float32 number closest to it: a literal in a query
    about float32 numbers cannot mean anything finer.
    """
    return formula_holds(formula, lambda atom: _true(atom, value, inputs or {}))


def _true(atom: Atom, value: ValueOf, inputs: Mapping[int, int]) -> bool:
    total = atom.constant
    for element, coefficient in atom.terms:
        number = value(element)
        if number is None or not math.isfinite(number):
            return False
        total += coefficient * (number if isinstance(number, Fraction) else Fraction(float(number)))
    if total > 0 or (total == 0 and not atom.strict):
        return True
    bound = None if atom.strict else as_bound(atom, inputs)
    return bound is not None and value(atom.terms[0][0]) == np.float32(float(bound[1]))
