"""Notes on standard error: what is good to know, and what --quiet leaves out."""

from __future__ import annotations

import typer


def note(text: str) -> None:
    """Say something that is good to know, unless --quiet was given."""
    from surebound.experiment.live import quiet

    if not quiet.get():
        typer.echo(text, err=True)
