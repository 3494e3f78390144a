"""Table 6: additional results, per architecture."""

from __future__ import annotations

from surebound.reproduction.artefacts.base import Artefact, Drawn
from surebound.reproduction.artefacts.paper import ADDITIONAL
from surebound.reproduction.artefacts.results_table import Line, draw_lines, lines, plan_of, smoke_part
from surebound.reproduction.bench import Bench
from surebound.reproduction.scale import Scale
from surebound.reproduction.work import WorkPlan


def _lines(scale: Scale) -> list[Line]:
    return lines(smoke_part(ADDITIONAL, scale), scale)


def plan(scale: Scale) -> WorkPlan:
    return plan_of(_lines(scale), scale)


def draw(bench: Bench, scale: Scale) -> Drawn:
    caption = "Additional results: clean, PGD and verified error per architecture"
    return draw_lines(bench, scale, _lines(scale), "table-6", caption)


ARTEFACT = Artefact("table-6", "additional-results", "Results per architecture", plan, draw)
