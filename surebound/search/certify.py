"""Certificates of formulas: the cases of each box become one file."""

from __future__ import annotations

from pathlib import Path

from surebound.certificates.directory import open_directory
from surebound.certificates.evidence import Evidences
from surebound.graph import Program
from surebound.search.formula import Certify
from surebound.search.question import Cases


def certifies(path: Path, program: Program, name: str) -> Certify:
    """Return what writes a proof's certificates to a directory: NAME.cert, or NAME-0.cert, ... for several boxes.

    GraphError if the checker does not know an operator of the program.
    """
    directory = open_directory(path, program)

    def write(cases: Cases, mode: str, evidence: Evidences) -> None:
        if not mode:
            directory.none(name, "proved within a solver's tolerance only")
            return
        known, groups = dict(evidence), list(cases.groups())
        for number, places in groups:
            box, part = cases.interval(number), cases[places]
            own = tuple((i, known[case]) for i, case in enumerate(places.tolist()) if case in known)
            file = name if len(groups) == 1 else f"{name}-{number}"
            directory.cases_proved(file, (box.lower, box.upper), part.c, part.d, mode, own)

    return write
