"""Values as small HTML tables: what a notebook shows of them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence


def facts(title: str, values: Mapping[str, object]) -> str:
    """Write names and values below a title.

    >>> facts("Box", {"shape": "(2, 3)"})
    '<table><tr><th colspan="2">Box</th></tr><tr><td>shape</td><td>(2, 3)</td></tr></table>'
    """
    rows = "".join(f"<tr><td>{_text(name)}</td><td>{_text(value)}</td></tr>" for name, value in values.items())
    return f'<table><tr><th colspan="2">{_text(title)}</th></tr>{rows}</table>'


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> str:
    """Write a table with a header, and a line below it."""
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    below = f"<p>{_text(note)}</p>" if note else ""
    return f"<table><tr>{head}</tr>{body}</table>{below}"


def _text(value: object) -> str:
    return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))
