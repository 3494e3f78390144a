"""VNN-LIB 2.0, read by the standard's own parser (PyPI: vnnlib); its types and scopes are checked there."""

from __future__ import annotations

import functools
import importlib
import json
import re
from typing import Any as Anything

from surebound.errors import MissingExtraError, QueryError
from surebound.spec.formula import All, Any, Formula, Sum, comparison, folded
from surebound.vnnlib.infix import standard
from surebound.vnnlib.products import Monomials
from surebound.vnnlib.query import Kind, Network, Query, Variable, number, placed
from surebound.vnnlib.text1 import DEEPEST, MOST_VARIABLES

_TYPES = {
    "Real": "real", "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16",
    "F8E4M3FN": "float8e4m3fn", "F8E5M2": "float8e5m2", "F8E4M3FNUZ": "float8e4m3fnuz",
    "F8E5M2FNUZ": "float8e5m2fnuz", "F4E2M1": "float4e2m1", "I8": "int8", "I16": "int16", "I32": "int32",
    "I64": "int64", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "C64": "complex64",
    "C128": "complex128", "Bool": "bool", "String": "string",
}  # fmt: skip
_RELATIONS = {
    "LessEqual": "<=", "LessThan": "<", "GreaterEqual": ">=", "GreaterThan": ">", "Equal": "==", "NotEqual": "!=",
}  # fmt: skip


def parse(text: str, source: str = "the query") -> Query:
    """Read a VNN-LIB 2.0 text."""
    try:
        parser = importlib.import_module("vnnlib")
    except ImportError:
        raise MissingExtraError("vnnlib", "onnx", "reading VNN-LIB 2.0") from None
    _check_depth(text, source)
    try:
        tree = parser.parse_query_string(standard(text))
    except Exception as error:  # the parser raises one class for every kind of mistake
        raise QueryError(f"{source}: {_message(error)}") from None
    networks = placed([_network(each, source) for each in tree.networks])
    if sum(each.size for network in networks for each in network.variables) > MOST_VARIABLES:
        raise QueryError(f"{source}: it declares more than {MOST_VARIABLES} numbers")
    products = Monomials(sum(each.size for network in networks for each in network.variables))
    reader = _Reader({each.name: each for network in networks for each in network.variables}, source, products)
    formula = All(tuple(reader.formula(each.expr) for each in tree.assertions))
    return Query(networks, formula, "2.0", products.pairs)


def _check_depth(text: str, source: str) -> None:
    """Refuse a text that nests without end: the parser recurses in compiled code, and would end the process."""
    depth = 0
    for bracket in re.finditer(r"[()]|;[^\n]*|\"(?:[^\"\\]|\\.)*\"", text):
        if bracket[0] == "(":
            depth += 1
            if depth > DEEPEST:
                raise QueryError(f"{source}: expressions are nested more than {DEEPEST} deep")
        elif bracket[0] == ")":
            depth -= 1


def _message(error: Exception) -> str:
    """Read the parser's message: it reports scoping and typing mistakes as JSON."""
    try:
        found = json.loads(str(error))["errors"][0]
        return f"line {found['line']}: {found['message']}: {found['offendingSymbol']}. {found['hint']}"
    except (ValueError, KeyError, IndexError, TypeError):
        return str(error).strip()[:300] or "it cannot be parsed"


def _network(tree: Anything, source: str) -> Network:
    def variables(group: Anything, kind: Kind) -> tuple[Variable, ...]:
        return tuple(_variable(each, kind, source) for each in group)

    return Network(
        tree.name,
        variables(tree.inputs, Kind.INPUT),
        variables(tree.hidden, Kind.HIDDEN),
        variables(tree.outputs, Kind.OUTPUT),
        tree.equal_to or None,
        tree.isometric_to or None,
    )


def _variable(tree: Anything, kind: Kind, source: str) -> Variable:
    dtype = _TYPES.get(tree.dtype.name)
    if dtype is None:
        raise QueryError(f"{source}: {tree.name} has an element type that the standard does not name")
    if "initialized" in str(tree):
        raise QueryError(f"{source}: {tree.name} is an initialized input; that part of 2.1 is not supported")
    name = tree.onnx_name
    try:
        node = None if name is None else json.loads(name)
    except ValueError as error:
        raise QueryError(f"{source}: {tree.name} names a tensor by {name[:40]!r}, which is no text: {error}") from error
    return Variable(tree.name, dtype, tuple(int(n) for n in tree.shape), kind, 0, node)


class _Reader:
    """From the parser's tree to ours."""

    def __init__(self, variables: dict[str, Variable], source: str, products: Monomials) -> None:
        self._source, self._products = source, products
        self._variables = variables
        self._strides = {name: _strides(each.shape) for name, each in variables.items()}

    def formula(self, tree: Anything) -> Formula:
        name = type(tree).__name__
        if name in _RELATIONS:
            return comparison(_RELATIONS[name], self._sum(tree.lhs), self._sum(tree.rhs))
        if name in ("And", "Or"):
            parts = tuple(self.formula(each) for each in tree.args)
            return All(parts) if name == "And" else Any(parts)
        raise QueryError(f"{self._source}: {str(tree)[:80]} is no constraint")

    def _sum(self, tree: Anything) -> Sum:
        name = type(tree).__name__
        if name == "Var":
            place = sum(i * s for i, s in zip(tree.indices, self._strides[tree.name], strict=True))
            return Sum(terms={self._variables[tree.name].first + place: number("1")})
        if name in ("Float", "Int", "IntExpr", "Literal"):
            return Sum(number(tree.lexeme.strip()))
        if name == "Negate":
            return Sum().plus(self._sum(tree.expr), -1)
        if name == "Plus":
            return folded([Sum(), *(self._sum(each) for each in tree.args)])
        if name == "Minus":
            return folded([self._sum(each) for each in (tree.head, *tree.rest)], -1)
        if name == "Multiply":
            return functools.reduce(self._products.times, (self._sum(each) for each in tree.args), Sum(number("1")))
        raise QueryError(f"{self._source}: {str(tree)[:80]} is no arithmetic expression")


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
