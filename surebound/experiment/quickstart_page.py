"""The quickstart's table and picture as one page that opens without a network."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>surebound quickstart</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
  table {{ border-collapse: collapse; margin: 1rem 0; }}
  th, td {{ padding: .35rem .9rem; text-align: right; border-bottom: 1px solid #8884; }}
  th:first-child, td:first-child {{ text-align: left; }}
  img {{ max-width: 100%; background: white; border-radius: 6px; }}
  div {{ overflow-x: auto; }}
</style>
<h1>How much of a network's accuracy can be proved?</h1>
<p>Two networks of the same shape on scikit-learn's 8x8 digits, the second one trained with interval bounds.</p>
<div><table><tr>{head}</tr>{body}</table></div>
<p>{text}</p>
<img alt="Ranges of the outputs over a ball; accuracy by radius, attacked and proved"
     src="data:image/png;base64,{image}">
<p>Redo it with <code>surebound quickstart</code>.</p>
</html>
"""


def write_page(
    path: Path, picture: Path, columns: Sequence[str], rows: Sequence[Sequence[str]], text: str
) -> None:
    """One HTML file with the picture inside."""
    head = "".join(f"<th>{html.escape(column)}" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in row) for row in rows)
    image = base64.b64encode(picture.read_bytes()).decode("ascii")
    page = PAGE.format(head=head, body=body, text=html.escape(text.strip()), image=image)
    path.write_text(page, encoding="utf-8")
