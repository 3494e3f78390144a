"""From assertions to a domain: which inputs are one variable, the box they lie in, and what else is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from surebound.errors import QueryError
from surebound.spec.formula import All, Any, Atom, Formula, as_bound, renamed
from surebound.vnnlib.query import Query, Variable


def unify(query: Query) -> tuple[All, dict[int, int]]:
    """Return the formula with equated inputs under one name, and that name of each input."""
    own = {e for network in query.networks for each in network.inputs for e in each.elements}
    leader: dict[int, int] = {}

    def find(element: int) -> int:
        while leader.get(element, element) != element:
            element = leader[element]
        return element

    parts = _flat(query.formula)
    pairs = [each for each in parts if isinstance(each, Atom) and len(each.terms) == 2 and each.constant == 0]
    known = {each for each in pairs if not each.strict}
    for part in known:
        (a, p), (b, q) = part.terms
        opposite = Atom(((a, -p), (b, -q)), part.constant)
        if p == -q and a in own and b in own and opposite in known:
            leader[max(find(a), find(b))] = min(find(a), find(b))
    alias = {element: find(element) for element in own}
    if all(a == b for a, b in alias.items()):
        return All(tuple(parts)), alias
    return All(tuple(renamed(part, alias) for part in parts)), alias


def _flat(formula: Formula) -> list[Formula]:
    """Return the parts of a conjunction, of those within it too."""
    found, stack = list[Formula](), [formula]
    while stack:
        part = stack.pop()
        if isinstance(part, All):
            stack.extend(reversed(part.parts))
        else:
            found.append(part)
    return found


def places(alias: Mapping[int, int]) -> dict[int, int]:
    """Return the place of each input element in the merged input vector."""
    order = {leader: place for place, leader in enumerate(sorted(set(alias.values())))}
    return {element: order[leader] for element, leader in alias.items()}


Ends = tuple[Fraction, ...]


def bounds(query: Query, formula: All, places: Mapping[int, int]) -> tuple[Ends, Ends, Formula]:
    """Return the box that the assertions themselves give, and the rest of the formula.

    The box is closed: of strict bounds it keeps the end, unless nothing but that end would be left.
    """
    count = len(set(places.values()))
    low: list[Fraction | None] = [None] * count
    high: list[Fraction | None] = [None] * count
    rest: list[Formula] = []
    open_ends: set[tuple[int, Fraction]] = set()
    for part in formula.parts:
        bound = as_bound(part, places) if isinstance(part, Atom) else None
        if bound is None:
            rest.append(part)
            continue
        place, value, is_lower = bound
        if isinstance(part, Atom) and part.strict:
            open_ends.add((place, value))
        now = low[place] if is_lower else high[place]
        if is_lower:
            low[place] = value if now is None else max(now, value)
        else:
            high[place] = value if now is None else min(now, value)
    cases = _hull(rest, places)
    for place, (least, most) in cases.items():
        low[place] = least if low[place] is None else low[place]
        high[place] = most if high[place] is None else high[place]
    if None in low or None in high:
        _follow(rest, places, low, high)
    for place in range(count):
        if low[place] is None or high[place] is None:
            element = next(e for e, p in places.items() if p == place)
            variable, index = query.element(element)
            side = "below" if low[place] is None else "above"
            raise QueryError(
                f"the input {variable.name}[{_index(variable, index)}] is not bounded {side}; every input needs bounds"
            )
    if any(low[place] == high[place] == value for place, value in open_ends):
        rest.append(Any(()))  # x > 1/2 and x <= 1/2: nothing is left
    return tuple(v for v in low if v is not None), tuple(v for v in high if v is not None), All(tuple(rest))


def _follow(
    parts: Sequence[Formula], places: Mapping[int, int], low: list[Fraction | None], high: list[Fraction | None]
) -> None:
    """Fill in ends that inequalities between inputs imply, x <= y for one, until no more follow."""
    between = [part for part in parts if isinstance(part, Atom) and all(element in places for element, _ in part.terms)]
    before = -1
    while before != (before := sum(end is None for end in (*low, *high))):
        for atom in between:
            for element, factor in atom.terms:
                place, side = places[element], high if factor < 0 else low
                others = [(places[e], value) for e, value in atom.terms if e != element]
                ends = [high[other] if value > 0 else low[other] for other, value in others]
                if side[place] is None and None not in ends:
                    most = sum(value * end for (_, value), end in zip(others, ends, strict=True) if end is not None)
                    side[place] = (atom.constant + most) / -factor  # factor x >= -(constant + the most of the others)


def _hull(parts: Sequence[Formula], places: Mapping[int, int]) -> dict[int, tuple[Fraction | None, Fraction | None]]:
    """Bound inputs by what every alternative of some disjunction gives, each its own."""
    found: dict[int, tuple[Fraction | None, Fraction | None]] = {}
    for part in parts:
        if not isinstance(part, Any) or not part.parts:
            continue
        boxes = []
        for choice in part.parts:
            low: dict[int, Fraction] = {}
            high: dict[int, Fraction] = {}
            for atom in _flat(choice):
                bound = as_bound(atom, places) if isinstance(atom, Atom) else None
                if bound is not None:
                    place, value, is_lower = bound
                    (low if is_lower else high)[place] = value
            boxes.append((low, high))
        for place in set(boxes[0][0]) | set(boxes[0][1]):
            lows, highs = [b[0].get(place) for b in boxes], [b[1].get(place) for b in boxes]
            least = min((v for v in lows if v is not None), default=None) if None not in lows else None
            most = max((v for v in highs if v is not None), default=None) if None not in highs else None
            found[place] = (least, most)
    return found


def _index(variable: Variable, place: int) -> str:
    return ",".join(str(int(i)) for i in np.unravel_index(place, variable.shape)) if variable.shape else ""
