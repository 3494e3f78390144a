"""All faults."""

from __future__ import annotations

from tests.mutants.fault import Mutant
from tests.mutants.rooms import cuts, engine, outside, ranges, regions, rules, search, values

MUTANTS: list[Mutant] = [
    *values.FAULTS,
    *rules.FAULTS,
    *engine.FAULTS,
    *search.FAULTS,
    *outside.FAULTS,
    *regions.FAULTS,
    *cuts.FAULTS,
    *ranges.FAULTS,
]
