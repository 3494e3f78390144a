"""Table 4: comparison with the state of the art."""

from __future__ import annotations

from surebound.experiment.reproduce.bench import Bench
from surebound.experiment.reproduce.scale import Scale
from surebound.experiment.reproduce.work import Plan
from surebound.report.artefacts.base import Artefact, Drawn
from surebound.report.artefacts.paper import STATE_OF_THE_ART, Row
from surebound.report.artefacts.results_table import Line, draw_lines, lines, plan_of, smoke_part


def best_net(row: Row, scale: Scale) -> str:
    """The network behind a row: by table 6 the large one, medium for MNIST 0.1; Wong et al. does not scale further."""
    if scale is not Scale.PAPER:
        return "small"
    return "medium" if row.method == "wong" or (row.method, row.radius) == ("ibp", "0.1") else "large"


def _lines(scale: Scale) -> list[Line]:
    rows = smoke_part(STATE_OF_THE_ART, scale)
    return [line for row in rows for line in lines([row], scale, best_net(row, scale))]


def plan(scale: Scale) -> Plan:
    return plan_of(_lines(scale), scale)


def draw(bench: Bench, scale: Scale) -> Drawn:
    caption = "Comparison with the state of the art: clean, PGD and verified error"
    return draw_lines(bench, scale, _lines(scale), "table-4", caption)


ARTEFACT = Artefact("table-4", "state-of-the-art", "Comparison with the state of the art", plan, draw)
