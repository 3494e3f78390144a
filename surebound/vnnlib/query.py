"""A question about networks: is there an assignment of their inputs for which a formula holds?

Both versions of VNN-LIB become this. Everything in it is exact: numbers are fractions, and a formula is an and/or tree
of linear constraints over the elements of the declared tensors.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass
from fractions import Fraction

from surebound.errors import QueryError
from surebound.spec.formula import All


class Kind(enum.Enum):
    """What part of a network a variable stands for."""

    INPUT = "input"
    HIDDEN = "hidden"
    OUTPUT = "output"


@dataclass(frozen=True)
class Variable:
    """A declared tensor; ``first`` is the number of its first element among all elements of the query."""

    name: str
    dtype: str  # "real" or ONNX's name of an element type
    shape: tuple[int, ...]
    kind: Kind
    first: int
    node: str | None = None  # the tensor's name in the ONNX file: only for hidden ones

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def elements(self) -> range:
        """The numbers of its elements, in row-major order."""
        return range(self.first, self.first + self.size)


@dataclass(frozen=True)
class Network:
    """A declared network: its interface, and whether it is another one (equal) or built like it (isomorphic)."""

    name: str
    inputs: tuple[Variable, ...]
    hidden: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    equal_to: str | None = None
    isomorphic_to: str | None = None

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All tensors, in the order of declaration."""
        return (*self.inputs, *self.hidden, *self.outputs)


@dataclass(frozen=True)
class Query:
    """Networks and a formula; ``version`` is the text format it was read from, "1.0" or "2.0"."""

    networks: tuple[Network, ...]
    formula: All
    version: str
    products: tuple[tuple[int, int], ...] = ()  # the elements that are multiplied; each product is one, too

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All tensors, in the order of declaration."""
        return tuple(each for network in self.networks for each in network.variables)

    @property
    def exact_type(self) -> bool:
        """Are all tensors declared as reals? Then only exact-real results are asked about."""
        return all(each.dtype == "real" for each in self.variables)

    @property
    def pairs(self) -> dict[int, tuple[int, int]]:
        """The two elements that each product multiplies, by its own number."""
        first = sum(each.size for each in self.variables)
        return {first + i: pair for i, pair in enumerate(self.products)}

    def element(self, number: int) -> tuple[Variable, int]:
        """Return the variable of an element, and the element's place in it."""
        for each in self.variables:
            if number in each.elements:
                return each, number - each.first
        raise QueryError(f"no variable has an element {number}")


def placed(networks: list[Network]) -> tuple[Network, ...]:
    """Number the elements of the networks' variables one after the other."""
    first, done = 0, []
    for network in networks:
        groups = []
        for group in (network.inputs, network.hidden, network.outputs):
            members = []
            for each in group:
                members.append(dataclasses.replace(each, first=first))
                first += each.size
            groups.append(tuple(members))
        done.append(dataclasses.replace(network, inputs=groups[0], hidden=groups[1], outputs=groups[2]))
    return tuple(done)


def number(text: str) -> Fraction:
    """Read a decimal numeral, with or without exponent, exactly.

    >>> number("-1.5e-2")
    Fraction(-3, 200)
    """
    body, _, exponent = text.lower().partition("e")
    whole, _, digits = body.partition(".")
    try:
        power = int(exponent) if exponent else 0
        if abs(power) > 400:
            raise ValueError
        value = int(whole + digits)
    except ValueError:
        raise QueryError(f"{text[:40]!r} is no number") from None
    shift = power - len(digits)
    return Fraction(value * 10**shift) if shift >= 0 else Fraction(value, 10**-shift)
