"""VNN-LIB 1.0: variables X_i and Y_j of one network, assertions over them; read command by command.

Files are long and flat: one regular expression cuts the text, and an assertion becomes a constraint before the next one
is looked at.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator

from surebound.errors import QueryError
from surebound.spec.formula import All, Any, Atom, Formula, Sum, comparison, folded
from surebound.vnnlib.query import Kind, Network, Query, Variable, number

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")
_VARIABLE = re.compile(r"([XY])_([0-9]+)\Z")
_NUMERAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_COMPARISONS = frozenset({"<=", ">=", "<", ">", "=", "=="})

#: Deepest nesting that a query may have.
DEEPEST = 200

#: Most variables that a query may declare.
MOST_VARIABLES = 10_000_000


def parse(text: str, source: str = "the query") -> Query:
    """Read a VNN-LIB 1.0 text."""
    return _Version1Reader(text, source).query()


class _Version1Reader:
    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._text = _COMMENT.sub("", text)  # line ends stay
        self._tokens = (match[0] for match in _TOKEN.finditer(self._text))
        self._declared: dict[str, set[int]] = {"X": set(), "Y": set()}
        self._offset = 0
        self._frozen = False  # after the first assertion every variable is known
        self._known: dict[str, int] = {}

    def query(self) -> Query:
        assertions: list[Formula] = []
        for token in self._tokens:
            if token != "(":
                raise self._error(f"{token[:40]!r} stands outside of any command")
            command = self._next()
            if command == "declare-const":
                self._declare()
            elif command == "assert":
                self._freeze()
                assertions.append(self._formula(self._tree()))
                self._close("assert")
            else:
                raise self._error(f"the command {command[:40]!r}; 1.0 has declare-const and assert")
        self._freeze()
        sizes = {name: len(found) for name, found in self._declared.items()}
        if not assertions:
            raise self._error("it asserts nothing")
        x = Variable("X", "real", (sizes["X"],), Kind.INPUT, 0)
        y = Variable("Y", "real", (sizes["Y"],), Kind.OUTPUT, sizes["X"])
        return Query((Network("N", (x,), (), (y,)),), All(tuple(assertions)), "1.0")

    def _error(self, what: str) -> QueryError:
        return QueryError(f"{self._source}: {what}")

    def _line(self, word: str) -> int:
        """The line where a word stands first, looked up only when there is something to say about it."""
        found = re.search(rf"(?<![^\s()]){re.escape(word)}(?![^\s()])", self._text)
        return self._text.count("\n", 0, found.start() if found else None) + 1

    def _next(self) -> str:
        token = next(self._tokens, None)
        if token is None:
            raise self._error("it ends in the middle of a command")
        return token

    def _close(self, command: str) -> None:
        token = self._next()
        if token != ")":
            raise self._error(f"{token[:40]!r} after the end of {command}")

    def _declare(self) -> None:
        name, kind = self._next(), self._next()
        found = _VARIABLE.match(name)
        if found is None or kind != "Real" or self._frozen:
            raise self._error(
                f"declare-const {name[:40]} {kind[:40]}; 1.0 declares X_i and Y_j of type Real before any assertion"
            )
        numbers, index = self._declared[found[1]], int(found[2])
        if index in numbers or index >= MOST_VARIABLES:
            raise self._error(f"{name[:40]} is declared twice or numbered too high")
        numbers.add(index)
        self._close("declare-const")

    def _freeze(self) -> None:
        if self._frozen:
            return
        self._frozen = True
        for name, found in self._declared.items():
            if not found or max(found) != len(found) - 1:
                raise self._error(f"{name}_0, {name}_1, ... must be declared, without gaps")
        self._offset = len(self._declared["X"])

    def _tree(self) -> list[object] | str:
        """One expression as nested lists of words."""
        token = self._next()
        if token != "(":
            return token
        stack: list[list[object]] = [[]]
        while True:
            token = self._next()
            if token == "(":
                if len(stack) >= DEEPEST:
                    raise self._error(f"expressions are nested more than {DEEPEST} deep")
                stack.append([])
            elif token == ")":
                done = stack.pop()
                if not stack:
                    return done
                stack[-1].append(done)
            else:
                stack[-1].append(token)

    def _formula(self, tree: object) -> Formula:
        if isinstance(tree, list) and tree and isinstance(tree[0], str):
            head, rest = tree[0], tree[1:]
            if head in _COMPARISONS and len(rest) == 2:
                left, right = rest
                if isinstance(left, str) and isinstance(right, str):
                    simple = self._bound(str(head), left, right)
                    if simple is not None:
                        return simple
                return comparison(str(head), self._sum(left), self._sum(right))
            if head in ("and", "or") and len(rest) == 1:  # competitions write disjuncts so
                return self._formula(rest[0])
            if head == "and" and rest:
                return All(tuple(self._formula(each) for each in rest))
            if head == "or" and rest:
                return Any(tuple(self._formula(each) for each in rest))
        raise self._error(f"{_text(tree)} is no constraint; use <=, >=, <, >, =, and, or")

    def _bound(self, relation: str, left: str, right: str) -> Atom | None:
        """The plain case, which long files consist of: a variable against a number."""
        element = self._element(left)
        if element is None or relation in ("=", "==") or _NUMERAL.match(right) is None:
            return None
        sign = -1 if relation[0] == "<" else 1
        return Atom(((element, _UNITS[sign]),), -sign * number(right), len(relation) == 1)

    def _element(self, word: str) -> int | None:
        known = self._known.get(word)
        if known is not None:
            return known
        found = _VARIABLE.match(word)
        if found is None:
            return None
        index = int(found[2])
        if index not in self._declared[found[1]]:
            raise self._error(f"line {self._line(word)}: {word[:40]} is used but not declared")
        element = index + (self._offset if found[1] == "Y" else 0)
        self._known[word] = element
        return element

    def _sum(self, tree: object) -> Sum:
        if isinstance(tree, str):
            element = self._element(tree)
            if element is not None:
                return Sum(terms={element: _UNITS[1]})
            if _NUMERAL.match(tree):
                return Sum(number(tree))
        elif isinstance(tree, list) and len(tree) > 1:
            parts = [self._sum(each) for each in tree[1:]]
            if tree[0] == "+":
                return folded(parts)
            if tree[0] == "-":
                return folded([Sum(), *parts] if len(parts) == 1 else parts, -1)
            if tree[0] == "*":
                return functools.reduce(Sum.times, parts)
        raise self._error(f"{_text(tree)} is no linear expression")


_UNITS = {1: number("1"), -1: number("-1")}


def _text(tree: object) -> str:
    """The first words of an expression."""
    words = list(itertools.islice(_words(tree), 13))
    return " ".join([*words, "..."] if len(words) > 12 else words)[:120]


def _words(tree: object) -> Iterator[str]:
    if isinstance(tree, list):
        yield "("
        for each in tree:
            yield from _words(each)
        yield ")"
    else:
        yield str(tree)
