"""Every fault of `make mutants` still applies, and names tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.fault import ROOT, Mutant
from tests.mutants.table import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_applies_and_can_be_noticed(mutant: Mutant) -> None:
    assert mutant.applied() != (ROOT / "surebound" / mutant.file).read_text(encoding="utf-8")
    if mutant.file.endswith(".py"):
        compile(mutant.applied(), mutant.file, "exec")
    paths = mutant.tests[: mutant.tests.index("-k")] if "-k" in mutant.tests else mutant.tests
    assert paths and all((ROOT / path).exists() for path in paths), mutant.tests


def test_there_are_many_in_every_room() -> None:
    assert len(MUTANTS) >= 100 and len({(each.file, each.old, each.new) for each in MUTANTS}) == len(MUTANTS)
    rooms = {Path(each.file).parts[0] for each in MUTANTS}
    assert rooms >= {
        "numerics",
        "rules",
        "bounds",
        "kernels",
        "search",
        "solvers",
        "vnnlib",
        "verify",
        "attack",
        "graph",
        "data",
        "train",
        "spec",
    }
