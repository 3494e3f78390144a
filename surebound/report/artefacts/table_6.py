"""Table 6: additional results, per architecture."""

from __future__ import annotations

from surebound.experiment.reproduce.bench import Bench
from surebound.experiment.reproduce.scale import Scale
from surebound.experiment.reproduce.work import Plan
from surebound.report.artefacts.base import Artefact, Drawn
from surebound.report.artefacts.paper import ADDITIONAL
from surebound.report.artefacts.results_table import Line, draw_lines, lines, plan_of, smoke_part


def _lines(scale: Scale) -> list[Line]:
    return lines(smoke_part(ADDITIONAL, scale), scale)


def plan(scale: Scale) -> Plan:
    return plan_of(_lines(scale), scale)


def draw(bench: Bench, scale: Scale) -> Drawn:
    caption = "Additional results: clean, PGD and verified error per architecture"
    return draw_lines(bench, scale, _lines(scale), "table-6", caption)


ARTEFACT = Artefact("table-6", "additional-results", "Results per architecture", plan, draw)
