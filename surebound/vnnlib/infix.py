"""How VNN-LIB 2.0 texts of 2026 are spelt where the standard's parser wants it otherwise.

Infix comparisons, (Y[0] < Y[1]) for (< Y[0] Y[1]); and a version without its brackets, 2.0 for <2.0>.
"""

from __future__ import annotations

import re

_PART = re.compile(r"[()]|;[^\n]*|\"(?:[^\"\\]|\\.)*\"|[^\s()\[\]]+(?:\s*\[[^\]]*\])?")
_COMPARISONS = frozenset({"<=", "<", ">=", ">", "==", "!="})
_BARE_VERSION = re.compile(r"(\(\s*vnnlib-version\s+)([0-9.]+)(?=\s*\))")


def standard(text: str) -> str:
    """Spell a text as the standard's parser reads it; lines stay where they are.

    >>> standard("(vnnlib-version 2.0)(assert (X[0] <= 1.0))")
    '(vnnlib-version <2.0>)(assert (<= X[0]    1.0))'
    """
    return prefixed(_BARE_VERSION.sub(r"\1<\2>", text))


def prefixed(text: str) -> str:
    """Move comparisons that stand between their two sides to the front; lines stay where they are.

    >>> prefixed("(assert (and (X[0] <= 1.0) (>= Y[0] (+ 1 2))))")
    '(assert (and (<= X[0]    1.0) (>= Y[0] (+ 1 2))))'
    """
    stack: list[list[tuple[int, int]]] = [[]]  # of each open bracket: where it and its parts begin and end
    moves: list[tuple[int, int, int]] = []  # behind which bracket, and what
    for part in _PART.finditer(text):
        word = part[0]
        if word.startswith(";"):
            continue
        if word == "(":
            stack.append([part.span()])
        elif word == ")" and len(stack) > 1:
            (opened, _), *inner = stack.pop()
            if len(inner) == 3 and text[slice(*inner[1])] in _COMPARISONS:
                moves.append((opened + 1, *inner[1]))
            stack[-1].append((opened, part.end()))
        else:
            stack[-1].append(part.span())
    edits = [(first, last, " " * (last - first)) for _, first, last in moves]
    edits += [(at, at, f"{text[first:last]} ") for at, first, last in moves]
    for first, last, new in sorted(edits, reverse=True):
        text = text[:first] + new + text[last:]
    return text
