"""Everything that can say "robust": cascades of bounds, attacks and solvers, and results that survive."""

from __future__ import annotations

from surebound.search.cascade import CASCADES, Cascade, cascade
from surebound.search.record import Record
from surebound.verify.results import Results
from surebound.verify.run import Progress, verify
from surebound.verify.store import Store
from surebound.verify.summary import Summary, summarise

__all__ = [
    "CASCADES",
    "Cascade",
    "Progress",
    "Record",
    "Results",
    "Store",
    "Summary",
    "cascade",
    "summarise",
    "verify",
]
