"""Table 4: comparison with the state of the art."""

from __future__ import annotations

from surebound.experiment.reproduce.bench import Bench
from surebound.experiment.reproduce.scale import Scale
from surebound.experiment.reproduce.work import Plan
from surebound.report.artefacts.base import Artefact, Drawn
from surebound.report.artefacts.paper import STATE_OF_THE_ART
from surebound.report.artefacts.results_table import Line, draw_lines, lines, plan_of, smoke_part

BEST = {"mnist": "large", "cifar10": "large", "svhn": "large"}  # the paper's row is mostly its large network


def _lines(scale: Scale) -> list[Line]:
    rows = smoke_part(STATE_OF_THE_ART, scale)
    found = []
    for row in rows:
        net = "small" if scale is not Scale.PAPER else "medium" if row.method == "wong" else BEST[row.data]
        found += lines([row], scale, net)
    return found


def plan(scale: Scale) -> Plan:
    return plan_of(_lines(scale), scale)


def draw(bench: Bench, scale: Scale) -> Drawn:
    caption = "Comparison with the state of the art: clean, PGD and verified error"
    return draw_lines(bench, scale, _lines(scale), "table-4", caption)


ARTEFACT = Artefact("table-4", "state-of-the-art", "Comparison with the state of the art", plan, draw)
