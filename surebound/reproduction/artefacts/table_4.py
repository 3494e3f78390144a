"""Table 4: comparison with the state of the art."""

from __future__ import annotations

from surebound.reproduction.artefacts.paper import STATE_OF_THE_ART, Row
from surebound.reproduction.artefacts.results_table import Line, lines, results_artefact, smoke_part
from surebound.reproduction.scale import Scale


def best_net(row: Row, scale: Scale) -> str:
    """The network behind a row: by table 6 the large one, medium for MNIST 0.1; Wong et al. does not scale further."""
    if scale is not Scale.PAPER:
        return "small"
    return "medium" if row.method == "wong" or (row.method, row.radius) == ("ibp", "0.1") else "large"


def _lines(scale: Scale) -> list[Line]:
    rows = smoke_part(STATE_OF_THE_ART, scale)
    return [line for row in rows for line in lines([row], scale, best_net(row, scale))]


ARTEFACT = results_artefact(
    "table-4",
    "state-of-the-art",
    "Comparison with the state of the art",
    "Comparison with the state of the art: clean, PGD and verified error",
    _lines,
)
