"""The explorer's page: one file of HTML, style, script and data. Served, it asks for the rest."""

from __future__ import annotations

import html
import importlib.metadata
import json
import re
import secrets
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from surebound.report.explore.content import details, index_json
from surebound.report.explore.subject import Subject, hardest_first
from surebound.report.table import write_text

#: Images that a page of one file shows, if nobody says otherwise.
MOST_IMAGES = 200

_SCRIPTS = ("files.js", "draw.js", "state.js", "list.js", "look.js", "evidence.js", "take.js", "begin.js")


def written_page(subject: Subject, most: int = MOST_IMAGES, progress: Callable[[int, int], None] | None = None) -> str:
    """Compose the page that needs no server: the hardest images, and all that is known of them."""
    images = sorted(hardest_first(subject)[:most])
    data = index_json(subject, images, served=False)
    return _page(data, details(subject, images, progress), secrets.token_urlsafe(16), connect="'none'")


def write_explorer(
    subject: Subject, path: Path, most: int = MOST_IMAGES, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write that page to a file."""
    write_text(path, written_page(subject, most, progress))


def served_page(subject: Subject) -> str:
    """Compose the page that asks this machine for what it shows."""
    data = index_json(subject, sorted(subject.records), served=True)
    return _page(data, None, secrets.token_urlsafe(16), connect="'self'")


def policy(nonce: str, connect: str) -> str:
    """Return what a browser may load for the page: nothing from elsewhere, and no script but the page's own."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _page(data: dict[str, Any], known: dict[str, Any] | None, nonce: str, connect: str) -> str:
    folder = resources.files("surebound.report.explore")

    def text(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    parts = {
        "policy": html.escape(policy(nonce, connect)),
        "nonce": nonce,
        "version": html.escape(importlib.metadata.version("surebound")),
        "title": html.escape(f"{data['name']} · surebound explorer"),
        "css": text("explore.css"),
        "data": embedded(data),
        "known": embedded(known),
        "js": '"use strict";\n(() => {\n' + "\n".join(text(name) for name in _SCRIPTS) + "})();\n",
    }
    # One pass, and not str.format: what is put in stays as it is, and style and script are full of braces.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], text("frame.html"))


def embedded(data: Any) -> str:
    """Return data as JSON that cannot end the script element it stands in."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
