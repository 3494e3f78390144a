"""VNN-LIB 1.0: variables X_i and Y_j of one network, assertions over them; read command by command.

Files are long and flat: one regular expression cuts the text, and an assertion becomes a constraint before the next one
is looked at.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from fractions import Fraction

from surebound.errors import QueryError
from surebound.spec.formula import All, Any, Atom, Formula, Sum, comparison, folded
from surebound.vnnlib.query import Kind, Network, Query, Variable, number

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")
_VARIABLE = re.compile(r"([XY])_([0-9]+)\Z")
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMERAL = re.compile(rf"{_NUMBER}\Z")
#: What long files consist of: declarations, bounds of a variable, assertions of one. All else goes the long way.
_PLAIN_DECLARATION = re.compile(r"\s*\(\s*declare-const\s+([XY])_([0-9]+)\s+Real\s*\)")
_PLAIN = rf"\(\s*([<>]=?)\s+([XY]_[0-9]+)\s+({_NUMBER})\s*\)"
_PLAIN_BOUND = re.compile(rf"\s*{_PLAIN}")
_PLAIN_ASSERTION = re.compile(rf"\s*\(\s*assert\s*{_PLAIN}\s*\)")
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
        self._at = 0  # where the next token is looked for
        self._declared: dict[str, set[int]] = {"X": set(), "Y": set()}
        self._offset = 0
        self._frozen = False  # after the first assertion every variable is known
        self._known: dict[str, int] = {}
        self._numbers: dict[str, Fraction] = {}  # by numeral: few numbers stand in most places

    def query(self) -> Query:
        assertions: list[Formula] = []
        while True:
            if self._plain_declarations() or self._plain_assertions(assertions):
                continue
            token = self._token()
            if token is None:
                break
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

    def _plain_declarations(self) -> bool:
        """Read the declarations that stand here as most are written; were there any?"""
        before = self._at
        while (found := _PLAIN_DECLARATION.match(self._text, self._at)) is not None:
            self._at = found.end()
            self._add(found[1], found[2], "Real")
        return self._at > before

    def _plain_assertions(self, assertions: list[Formula]) -> bool:
        """Read the assertions of single bounds that stand here as most are written; were there any?"""
        before = self._at
        while (found := _PLAIN_ASSERTION.match(self._text, self._at)) is not None:
            self._freeze()
            self._at = found.end()
            assertions.append(self._atom(*found.groups()))
        return self._at > before

    def _error(self, what: str) -> QueryError:
        return QueryError(f"{self._source}: {what}")

    def _line(self, word: str) -> int:
        """Find the line where a word stands first, only when there is something to say about it."""
        found = re.search(rf"(?<![^\s()]){re.escape(word)}(?![^\s()])", self._text)
        return self._text.count("\n", 0, found.start() if found else None) + 1

    def _token(self) -> str | None:
        found = _TOKEN.search(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[0]

    def _next(self) -> str:
        token = self._token()
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
        self._add(*((found[1], found[2]) if found is not None else (name, "")), kind)
        self._close("declare-const")

    def _add(self, letter: str, digits: str, kind: str) -> None:
        """Note a declared variable."""
        name = f"{letter}_{digits}" if digits else letter
        if not digits or kind != "Real" or self._frozen:
            raise self._error(
                f"declare-const {name[:40]} {kind[:40]}; 1.0 declares X_i and Y_j of type Real before any assertion"
            )
        numbers, index = self._declared[letter], _index(digits)
        if index in numbers or index >= MOST_VARIABLES:
            raise self._error(f"{name[:40]} is declared twice or numbered too high")
        numbers.add(index)

    def _freeze(self) -> None:
        if self._frozen:
            return
        self._frozen = True
        for name, found in self._declared.items():
            if not found or max(found) != len(found) - 1:
                raise self._error(f"{name}_0, {name}_1, ... must be declared, without gaps")
        self._offset = len(self._declared["X"])

    def _tree(self) -> list[object] | str:
        """Read one expression as nested lists of words; plain bounds in conjunctions and disjunctions as atoms."""
        token = self._next()
        if token != "(":
            return token
        stack: list[list[object]] = [[]]
        while True:
            if stack[-1] and stack[-1][0] in ("and", "or"):
                while (found := _PLAIN_BOUND.match(self._text, self._at)) is not None:
                    self._at = found.end()
                    stack[-1].append(self._atom(*found.groups()))
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
        if isinstance(tree, Atom):
            return tree
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
        """Read the plain case, which long files consist of: a variable against a number."""
        if self._element(left) is None or relation in ("=", "==") or _NUMERAL.match(right) is None:
            return None
        return self._atom(relation, left, right)

    def _atom(self, relation: str, variable: str, numeral: str) -> Atom:
        """Make an atom of a variable and a number."""
        element, value = self._known.get(variable), self._numbers.get(numeral)
        if element is None:
            element = self._element(variable)
            if element is None:
                raise self._error(f"{variable[:40]} is no variable")
        if value is None:
            value = self._numbers[numeral] = number(numeral)
        sign = -1 if relation[0] == "<" else 1
        return Atom(((element, _UNITS[sign]),), value if sign < 0 else -value, len(relation) == 1)

    def _element(self, word: str) -> int | None:
        known = self._known.get(word)
        if known is not None:
            return known
        found = _VARIABLE.match(word)
        if found is None:
            return None
        index = _index(found[2])
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
            if tree[:1] in ("-", "+"):  # competitions write -Y_0 for (- Y_0)
                element = self._element(tree[1:])
                if element is not None:
                    return Sum(terms={element: _UNITS[-1 if tree[0] == "-" else 1]})
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


def _index(digits: str) -> int:
    """Read a variable's number; of so many digits it is too high, and Python may refuse to read them."""
    return int(digits) if len(digits) < 20 else MOST_VARIABLES


def _text(tree: object) -> str:
    """Return the first words of an expression."""
    words = list(itertools.islice(_words(tree), 13))
    return " ".join([*words, "..."] if len(words) > 12 else words)[:120]


def _words(tree: object) -> Iterator[str]:
    if isinstance(tree, list):
        yield "("
        for each in tree:
            yield from _words(each)
        yield ")"
    else:
        yield "(...)" if isinstance(tree, Atom) else str(tree)
