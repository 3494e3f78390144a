"""Table 6: additional results, per architecture."""

from __future__ import annotations

from surebound.reproduction.artefacts.paper import ADDITIONAL
from surebound.reproduction.artefacts.results_table import Line, lines, results_artefact, smoke_part
from surebound.reproduction.scale import Scale


def _lines(scale: Scale) -> list[Line]:
    return lines(smoke_part(ADDITIONAL, scale), scale)


ARTEFACT = results_artefact(
    "table-6",
    "additional-results",
    "Results per architecture",
    "Additional results: clean, PGD and verified error per architecture",
    _lines,
)
