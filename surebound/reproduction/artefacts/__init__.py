"""The paper's tables and figures, one small file each; `ARTEFACTS` lists them in the paper's order.

To add one: a file with `plan(scale)`, the work it needs, `draw(bench, scale)`, what is made of it, and `ARTEFACT`.
"""

from __future__ import annotations

from surebound.errors import InputError, nearest
from surebound.reproduction.artefacts import (
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    figure_9,
    runtime,
    table_1,
    table_2,
    table_3,
    table_4,
    table_5,
    table_6,
)
from surebound.reproduction.artefacts.base import Artefact, Drawn

ARTEFACTS: tuple[Artefact, ...] = tuple(
    module.ARTEFACT
    for module in (
        table_1, table_2, table_3, table_4, table_5, table_6, runtime, figure_1, figure_2, figure_3, figure_4,
        figure_5, figure_6, figure_9,
    )
)  # fmt: skip

__all__ = ["ARTEFACTS", "Artefact", "Drawn", "find"]


def find(name: str) -> Artefact:
    """An artefact by one of its names: `table-4` or `state-of-the-art`.

    >>> find("table-4").alias
    'state-of-the-art'
    """
    for artefact in ARTEFACTS:
        if name in artefact.names:
            return artefact
    known = [n for a in ARTEFACTS for n in a.names]
    raise InputError(
        f"no artefact is called {name!r}{nearest(name, known)} `surebound reproduce --list` lists all of them"
    )
