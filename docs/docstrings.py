"""Docstrings as the site needs them: without this, Markdown reads every `>>>` as three nested quotations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Write docstrings as Markdown: doctests as code, `requirement: ...` as a list, fields with their comments."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(listed(obj.docstring.value))

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the comment behind a field for its docstring."""
        if attr.docstring is None and attr.lineno is not None and isinstance(attr.filepath, Path):
            line = attr.filepath.read_text(encoding="utf-8").splitlines()[attr.lineno - 1]
            found = re.search(r"  # (?!type:|noqa|fmt:)(.+)$", line)
            if found:
                attr.docstring = griffe.Docstring(found[1], parent=attr)


def listed(text: str) -> str:
    """Make list items of lines like `return: ...` and of what is indented below them.

    >>> listed("Do.\\n\\nreturn:   bounds\\n          (B, K)\\nproperty: sound").splitlines()
    ['Do.', '', '- **return**: bounds', '    (B, K)', '- **property**: sound']
    """
    keys = "requirement|return|method|property|reference|soundness"
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        found = re.match(rf"({keys}):\s+(.*)$", line)
        if found:
            lines.append(f"- **{found[1]}**: {found[2]}")
        elif inside and line.startswith("  "):
            lines.append(f"    {line.strip()}")
        else:
            lines.append(line)
        inside = bool(found) or (inside and line.startswith("  "))
    return "\n".join(lines)


def fenced(text: str) -> str:
    """Put doctests between fences.

    >>> fenced("Add.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.lstrip().startswith(">>>") and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
