"""Formulas of the site: ```math fences hold LaTeX, which code hosts render; here it becomes MathML, which browsers do.

Nothing is fetched and no script runs. The part of LaTeX that the pages use is known, anything else is an error.
"""

from __future__ import annotations

import html
import re
from typing import Any

_FENCE = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\s+|.", re.DOTALL)
_LETTERS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "epsilon": "ε", "kappa": "κ", "lambda": "λ", "mu": "μ", "ell": "ℓ",
    "infty": "∞",
}  # fmt: skip
_SIGNS = {
    "le": "≤", "ge": "≥", "cdot": "·", "pm": "±", "in": "∈", "to": "→", "top": "⊤", "sum": "∑", "lvert": "|",
    "rvert": "|", "lbrace": "{", "rbrace": "}", "ldots": "…", "times": "×", "Rightarrow": "⇒",
}  # fmt: skip
_NAMES = ("max", "min", "log", "exp")
_ACCENTS = {"hat": "^", "underline": "_", "overline": "¯"}
_SPACES = {"quad": "1em", "qquad": "2em", ",": "0.17em", ";": "0.28em", " ": "0.28em"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put MathML where a page has formulas."""
    return _FENCE.sub(lambda found: f'<div class="formula">{mathml(found[1])}</div>', markdown)


def mathml(text: str) -> str:
    """Return a formula as MathML; ``\\\\`` begins a line, ``&`` a column.

    >>> mathml("a_1 \\\\le \\\\gamma")
    '<math display="block"><msub><mi>a</mi><mn>1</mn></msub><mo>≤</mo><mi>γ</mi></math>'
    """
    text = re.sub(r"\\(?:begin|end)\{aligned\}", "", text)
    lines = [line for line in re.split(r"\\\\", text.strip()) if line.strip()]
    if len(lines) == 1 and "&" not in text:
        return f'<math display="block">{_Parser(lines[0]).row()}</math>'
    cells = [[f"<mtd>{_Parser(cell).row()}</mtd>" for cell in line.split("&")] for line in lines]
    rows = "".join(f"<mtr>{''.join(line)}</mtr>" for line in cells)
    return f'<math display="block"><mtable class="lines">{rows}</mtable></math>'


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [token for token in _TOKEN.findall(text) if not token.isspace()]
        self._texts = iter(re.findall(r"\\text\{([^}]*)\}", text))
        self._at = 0

    def row(self) -> str:
        """Read to the end, or to the brace that closes the group."""
        parts = []
        while self._at < len(self._tokens) and self._tokens[self._at] != "}":
            parts.append(self._scripted())
        return "".join(parts)

    def _scripted(self) -> str:
        base, below, above = self._atom(), "", ""
        while self._at < len(self._tokens) and self._tokens[self._at] in "_^":
            if self._next() == "_":
                below = self._atom()
            else:
                above = self._atom()
        over = base in ("<mo>∑</mo>", "<mi>max</mi>", "<mi>min</mi>")
        if below and above:
            tag = "munderover" if over else "msubsup"
        elif below or above:
            tag = ("munder" if over else "msub") if below else ("mover" if over else "msup")
        else:
            return base
        return f"<{tag}>{base}{below}{above}</{tag}>"

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _group(self) -> str:
        if self._next() != "{":
            raise ValueError(f"a brace is missing in the formula before {self._tokens[self._at - 1 :]}")
        inside = self.row()
        self._next()
        return f"<mrow>{inside}</mrow>"

    def _atom(self) -> str:
        token = self._next()
        if token == "{":
            self._at -= 1
            return self._group()
        if token.startswith("\\"):
            return self._command(token[1:])
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        return _sign({"-": "−", "'": "′"}.get(token, token))

    def _command(self, name: str) -> str:
        if name in _LETTERS:
            return f"<mi>{_LETTERS[name]}</mi>"
        if name in _SIGNS:
            return _sign(_SIGNS[name])
        if name in _NAMES:
            return f"<mi>{name}</mi>"
        if name in _SPACES:
            return f'<mspace width="{_SPACES[name]}"/>'
        if name in ("{", "}", "|"):
            return _sign(name)
        if name in _ACCENTS:
            tag = "munder" if name == "underline" else "mover"
            return f"<{tag}>{self._group()}<mo>{_ACCENTS[name]}</mo></{tag}>"
        if name == "frac":
            return f"<mfrac>{self._group()}{self._group()}</mfrac>"
        if name == "text":
            self._group()  # its words were read with their spaces
            return f"<mtext>{html.escape(next(self._texts))}</mtext>"
        raise ValueError(f"\\{name} is not known in formulas: add it to docs/mathml.py")


def _sign(text: str) -> str:
    """Return an operator; bars and brackets stay as high as a letter, and bars close to what they enclose."""
    if text == "|":
        return '<mo stretchy="false" lspace="0" rspace="0">|</mo>'
    kind = ' stretchy="false"' if text in "(){}[]" else ""
    return f"<mo{kind}>{html.escape(text)}</mo>"
