"""A formula as cases: each a box of inputs and rows that must all be >= 0. No case possible: no assignment.

Before a formula is multiplied out, whatever bounds over the whole box refute is cut from the tree, so that long
disjunctions cost one pass, not one proof per combination.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from surebound.errors import QueryError
from surebound.flags import uncollected
from surebound.numerics import float_up, outer_float32
from surebound.search.problem import Problem, inner_box
from surebound.spec.formula import All, Any, AtLeast, Atom, Formula, as_bound

#: Most cases that a formula may come to after cutting.
MOST_CASES = 400_000


@dataclass(frozen=True)
class Case:
    """Tighter ends of some inputs, by place, and the constraints that must all hold."""

    lower: tuple[tuple[int, Fraction], ...]
    upper: tuple[tuple[int, Fraction], ...]
    rows: tuple[Atom, ...]

    def __hash__(self) -> int:
        return hash((self.box, self.rows))

    @property
    def box(self) -> tuple[int, ...]:
        """What tells its box from that of another case: whole numbers, which hash faster than fractions."""
        ends = [(place, value.numerator, value.denominator) for place, value in (*self.lower, *self.upper)]
        return (len(self.lower), *itertools.chain.from_iterable(ends))


def without(formula: Formula, refuted: Collection[Atom]) -> Formula | None:
    """Remove from a formula what cannot hold and what holds for sure; return None if nothing is left of it."""
    if isinstance(formula, Atom):
        dead = formula in refuted or formula.truth is False
        return None if dead else formula
    alive = [part for part in (without(part, refuted) for part in formula.parts) if part is not None]
    doubtful = tuple(part for part in alive if not _certain(part))
    needed = _needed(formula) - (len(alive) - len(doubtful))
    if needed > len(doubtful):
        return None
    if needed <= 0:
        return All(())
    if needed == len(doubtful):
        return All(doubtful)
    return Any(doubtful) if needed == 1 else AtLeast(needed, doubtful)


def _needed(formula: All | Any | AtLeast) -> int:
    """Count the parts that must hold."""
    if isinstance(formula, AtLeast):
        return formula.count
    return len(formula.parts) if isinstance(formula, All) else 1


def _certain(formula: Formula) -> bool:
    if isinstance(formula, Atom):
        return formula.truth is True
    return isinstance(formula, All) and all(_certain(part) for part in formula.parts)


def count(formula: Formula) -> int:
    """Count the cases that a formula has at most."""
    if isinstance(formula, Atom):
        return 1
    counts = [count(part) for part in formula.parts]
    if not isinstance(formula, AtLeast):
        return math.prod(counts) if isinstance(formula, All) else sum(counts)
    chosen = formula.count
    ways = [1] + [0] * chosen  # ways[i]: to choose i of the parts seen so far, each in one of its cases
    for each in counts:
        for i in range(chosen, 0, -1):
            ways[i] += ways[i - 1] * each
    return ways[chosen]


def cases(formula: Formula, problem: Problem, finite: Callable[[], bool]) -> list[Case]:
    """List the cases of a formula whose box is not empty.

    ``finite`` says whether all outputs are numbers everywhere in the box: only then rows exclude each other, because of
    NaN no comparison is true.
    """
    if count(formula) > MOST_CASES:
        raise QueryError(
            f"the formula has {count(formula)} cases after bounds have cut it; at most {MOST_CASES} are supported"
        )
    with uncollected():
        found = (_case(atoms, problem, finite) for atoms in _choices(formula))
        return list(dict.fromkeys(case for case in found if case is not None))


def _choices(formula: Formula) -> Iterator[tuple[Atom, ...]]:
    if isinstance(formula, Atom):
        yield (formula,)
        return
    parts = [list(_choices(part)) for part in formula.parts]
    for group in itertools.combinations(parts, _needed(formula)):
        for chosen in itertools.product(*group):
            yield tuple(itertools.chain.from_iterable(chosen))


def _case(chosen: Sequence[Atom], problem: Problem, finite: Callable[[], bool]) -> Case | None:
    low: dict[int, Fraction] = {}
    high: dict[int, Fraction] = {}
    rows: dict[Atom, None] = {}
    for atom in chosen:
        bound = as_bound(atom, problem.inputs)
        if bound is None:
            if atom.terms:
                rows[atom] = None
            elif atom.truth is False:
                return None
            continue
        place, value, is_lower = bound
        if is_lower and value > low.get(place, problem.lower[place]):
            low[place] = value
        elif not is_lower and value < high.get(place, problem.upper[place]):
            high[place] = value
    for place in set(low) | set(high):
        if low.get(place, problem.lower[place]) > high.get(place, problem.upper[place]):
            return None
    if any(row.opposite in rows for row in rows) and finite():
        return None
    return Case(tuple(sorted(low.items())), tuple(sorted(high.items())), tuple(rows))


Ends = tuple[Tensor, Tensor]


def boxes_of(members: Sequence[Case], problem: Problem) -> tuple[Ends, Ends]:
    """Return the boxes of cases, each end (N, *input) float32: those that contain the exact ones, those inside them.

    Only ends that a case changes are rounded anew.
    """
    whole = problem.whole
    inside = (torch.from_numpy(end).reshape(whole.shape) for end in inner_box(problem.lower, problem.upper))
    size = [len(members)] + [1] * (len(whole.shape) - 1)
    found = [end.repeat(size).flatten(1) for end in (whole.lower, whole.upper, *inside)]
    row, column, low, high = list[int](), list[int](), list[Fraction](), list[Fraction]()
    for i, case in enumerate(members):
        lower, upper = dict(case.lower), dict(case.upper)
        for place in lower | upper:
            row.append(i)
            column.append(place)
            low.append(lower.get(place, problem.lower[place]))
            high.append(upper.get(place, problem.upper[place]))
    for tensor, ends in zip(found, (*outer_float32(low, high), *inner_box(low, high)), strict=True):
        tensor[row, column] = torch.from_numpy(ends)
    first, second, third, fourth = (each.reshape(len(members), *whole.shape[1:]) for each in found)
    return (first, second), (third, fourth)


def coefficients(rows: Sequence[Atom], columns: Mapping[int, int], outputs: int) -> tuple[Tensor, Tensor]:
    """Return rows as c (S, K) and d (S,) in float64: each times a positive number, c exact and d not too small."""
    c = torch.zeros(len(rows), outputs, dtype=torch.float64)
    d = torch.zeros(len(rows), dtype=torch.float64)
    for i, row in enumerate(rows):
        common = math.lcm(*(value.denominator for _, value in row.terms))
        scale = Fraction(common, math.gcd(*(int(value * common) for _, value in row.terms)))
        numbers = {columns[element]: _exact(value * scale) for element, value in row.terms}
        offset = float_up(row.constant * scale)
        exact = {column: number for column, number in numbers.items() if number is not None}
        if len(exact) < len(numbers) or math.isinf(offset):
            raise QueryError(
                f"the numbers of a constraint have no common scale in float64 (e.g. {str(row.terms[0][1])[:40]}); "
                "write them with fewer digits, or closer to each other"
            )
        for column, number in exact.items():
            c[i, column] = number
        d[i] = offset
    return c, d


def _exact(value: Fraction) -> float | None:
    """Return a fraction as a float64 number, if it is one."""
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if Fraction(number) == value else None
