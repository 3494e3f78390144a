"""Products of variables: each is an element of its own, which the merged network computes beside the others.

So constraints stay linear in elements, and polynomials are bounded like everything else that a network multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from surebound.errors import QueryError
from surebound.graph.onnx.build import Builder, Value
from surebound.spec.formula import Sum

#: Most products that a query may have.
MOST_PRODUCTS = 100_000

Pair = tuple[int, int]


class Monomials:
    """The products of a query in the making; their elements are numbered from ``first`` on."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._known: dict[Pair, int] = {}

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The elements that each product multiplies; both stand before it."""
        return tuple(self._known)

    def times(self, left: Sum, right: Sum) -> Sum:
        """Multiply two expressions out."""
        found = Sum(left.constant * right.constant)
        found = found.plus(Sum(terms=left.terms), right.constant).plus(Sum(terms=right.terms), left.constant)
        terms: dict[int, Fraction] = {}
        for a, p in left.terms.items():
            for b, q in right.terms.items():
                element = self._element(a, b)
                terms[element] = terms.get(element, Fraction(0)) + p * q
        return found.plus(Sum(terms=terms))

    def _element(self, a: int, b: int) -> int:
        pair = (a, b) if a <= b else (b, a)
        if len(self._known) >= MOST_PRODUCTS:
            raise QueryError(f"the query has more than {MOST_PRODUCTS} products of variables")
        return self._known.setdefault(pair, self._first + len(self._known))


def factors(used: set[int], pairs: Mapping[int, Pair]) -> set[int]:
    """Return elements together with all that the products among them multiply."""
    found, stack = set[int](), list(used)
    while stack:
        element = stack.pop()
        if element not in found:
            found.add(element)
            stack.extend(pairs.get(element, ()))
    return found


def multiplied(
    builder: Builder, values: Value, columns: Mapping[int, int], pairs: Mapping[int, Pair]
) -> tuple[Value, dict[int, int]]:
    """Append products (in the order of their numbers) to the values (B, K) of other elements, squares as such."""
    known, left = dict(columns), dict(sorted(pairs.items()))
    while left:
        ready = {product: pair for product, pair in left.items() if all(e in known for e in pair)}
        squares = [product for product, (a, b) in ready.items() if a == b]
        others = [product for product, (a, b) in ready.items() if a != b]
        parts = [values]
        for group in (squares, others):
            if not group:
                continue
            one, other = (_picked(builder, values, [known[ready[p][k]] for p in group]) for k in (0, 1))
            made = (
                builder.call("pow.Tensor_Scalar", one, 2)
                if group is squares
                else builder.call("mul.Tensor", one, other)
            )
            known |= {product: sum(v.item[0] for v in parts) + i for i, product in enumerate(group)}
            parts.append(made)
        values = builder.call("cat.default", parts, 1)
        left = {product: pair for product, pair in left.items() if product not in ready}
    return values, known


def _picked(builder: Builder, values: Value, places: Sequence[int]) -> Value:
    return builder.call("index_select.default", values, 1, torch.tensor(list(places)))


def with_products(values: NDArray[np.float32], pairs: Sequence[Pair]) -> NDArray[np.float32]:
    """Append products to the values (N,) of all other elements."""
    found = values.tolist()
    for a, b in pairs:
        found.append(found[a] * found[b])
    return np.array(found, dtype=np.float32)


def exactly(
    value: Callable[[int], np.float32 | None], pairs: Mapping[int, Pair]
) -> Callable[[int], np.float32 | Fraction | None]:
    """Return the value of an element, of a product as an exact fraction."""

    def of(element: int) -> np.float32 | Fraction | None:
        if element not in pairs:
            return value(element)
        product = Fraction(1)
        for each in pairs[element]:
            number = of(each)
            if number is None or not math.isfinite(number):
                return None
            product *= number if isinstance(number, Fraction) else Fraction(float(number))
        return product

    return of
