"""The HTML page: pieces of a report as one file that needs no network."""

from __future__ import annotations

import html
import importlib.metadata
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from surebound.report.gallery import Picture, difference_pixels, image_pixels, png
from surebound.report.verdicts import Share

_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="surebound {version}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{css}</style>
</head>
<body>
{body}
<footer>Written by surebound {version}. This page is one file; it loads nothing from elsewhere.</footer>
<dialog aria-label="Enlarged image"><div class="panels"></div>
<form method="dialog"><button>close</button></form><p></p></dialog>
<script>
{js}</script>
</body>
</html>
"""


def page(title: str, body: Iterable[str]) -> str:
    """The whole file."""
    folder = resources.files("surebound.report")
    return _FRAME.format(
        version=importlib.metadata.version("surebound"),
        title=esc(title),
        css=folder.joinpath("page.css").read_text(encoding="utf-8"),
        js=folder.joinpath("page.js").read_text(encoding="utf-8"),
        body="\n".join(part for part in body if part),
    )


def esc(text: object) -> str:
    """Text as HTML."""
    return html.escape(str(text))


def paragraph(text: str, kind: str = "") -> str:
    """Plain text as a paragraph of a style of page.css; what stands between backticks is code."""
    inner = re.sub("`([^`]+)`", r"<code>\1</code>", esc(text))
    return f'<p class="{kind}">{inner}</p>' if kind else f"<p>{inner}</p>"


def heading(text: str, level: int = 2, anchor: str = "") -> str:
    """h2 or h3."""
    at = f' id="{esc(anchor)}"' if anchor else ""
    return f"<h{level}{at}>{esc(text)}</h{level}>"


def bar(shares: Sequence[Share]) -> str:
    """All images as one bar, with its legend."""
    total = max(1, sum(share.count for share in shares))
    legend = "".join(
        f'<li style="--c:var(--{s.key})"><b>{100 * s.count / total:.1f} %</b> {esc(s.label)} '
        f'<span class="meta">({s.count:,})</span></li>'
        for s in shares
        if s.count
    )
    return f'{_strip(shares)}<ul class="legend">{legend}</ul>'


def bars(rows: Mapping[str, Sequence[Share]]) -> str:
    """One thin bar per radius, with the share that is proved."""
    lines = []
    for name, shares in rows.items():
        total = max(1, sum(share.count for share in shares))
        proved = sum(share.count for share in shares if share.key == "proved")
        lines.append(f"<span>{esc(name)}</span>{_strip(shares)}<b>{100 * proved / total:.1f} %</b>")
    return f'<div class="rows">{"".join(lines)}</div>'


def _strip(shares: Sequence[Share]) -> str:
    shown = [share for share in shares if share.count]
    label = ", ".join(f"{share.count} {share.label}" for share in shown)
    parts = "".join(f'<i style="flex-grow:{s.count};background:var(--{s.key})"></i>' for s in shown)
    return f'<div class="bar" role="img" aria-label="{esc(label)}">{parts}</div>'


def command(text: str) -> str:
    """A command to copy."""
    return f'<div class="command"><pre>{esc(text)}</pre><button type="button" class="copy">copy</button></div>'


def facts(values: Mapping[str, object]) -> str:
    """A list of names and values, a tuple being several; empty values are left out."""
    items = []
    for name, value in values.items():
        if value not in (None, "", (), []):
            several = value if isinstance(value, tuple) else (value,)
            items.append(f"<dt>{esc(name)}</dt><dd>{'<br>'.join(esc(each) for each in several)}</dd>")
    return f"<dl>{''.join(items)}</dl>"


def details(summary: str, inner: str) -> str:
    """Something to unfold."""
    return f"<details><summary>{esc(summary)}</summary>{inner}</details>"


def tiles(pictures: Sequence[Picture]) -> str:
    """Small images that open enlarged."""
    kind = "tiles" if any(p.witness is not None for p in pictures) else "tiles single"
    return f'<div class="{kind}">{"".join(_tile(p) for p in pictures)}</div>'


def _tile(picture: Picture) -> str:
    panels = []
    if picture.original is not None:
        panels.append(("image", png(image_pixels(picture.original))))
    if picture.witness is not None:
        panels.append(("counterexample", png(image_pixels(picture.witness))))
    change = picture.perturbation
    if change is not None:
        panels.append(("change, scaled: red brighter, blue darker", png(difference_pixels(change, picture.eps))))
    images = "".join(f'<img alt="{esc(name)}" src="{uri}">' for name, uri in panels)
    return (
        f'<button type="button" class="tile"><span class="panels">{images}</span>'
        f'<b>{esc(picture.title)}</b><span class="say">{esc(picture.detail)}</span></button>'
    )


def records_section(records: str, *, certificates: bool = False) -> str:
    """The table of all verdicts; the page's script fills it from the JSON text."""
    names = ["network", "image", "ε", "label", "prediction", "verdict", "stage", "bound", "seconds", "read as"]
    names += ["certificate"] if certificates else []
    right = {1, 2, 3, 4, 7, 8, 9}
    head = "".join(
        f'<th scope="col" data-column="{i}"{" class=n" if i in right else ""}><button type="button">{n}</button></th>'
        for i, n in enumerate(names)
    )
    choices = "".join(
        f'<label>{name} <select aria-label="{name}"><option value="">all</option></select></label>'
        for name in ("network", "ε", "verdict")
    )
    return (
        f'<div class="filters">{choices}<span class="meta" id="shown"></span></div>'
        f'<div class="wide"><table id="images"><thead><tr>{head}</tr></thead><tbody></tbody></table></div>'
        '<button type="button" class="more">more</button>'
        "<noscript><p>This table needs scripts.</p></noscript>"
        f'<script type="application/json" id="records">{records}</script>'
    )
