"""The audit: a part of it in every run of the tests; and that it counts, repeats and shrinks."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from surebound.audit import GENERATORS, Tally, audit
from surebound.audit.networks import network
from surebound.audit.operators import called, rules
from surebound.audit.queries import decimal, exact
from surebound.audit.text import NetworkText, Piece, loaded, shrunk
from surebound.audit.trials import Trial
from surebound.cli import build_app
from surebound.errors import InputError

#: Seconds for each generator: a minute in all.
SHARE = 60 / len(GENERATORS)

#: And no more trials than these, so that a faster machine does not try others. `make audit` looks further.
MOST = 12


@pytest.mark.parametrize("name", GENERATORS)
def test_nothing_is_found(name: str) -> None:
    tally = audit(SHARE, seed=2, only=(name,), trials=MOST)
    while tally.comparisons == 0 and tally.trials[name] < 20:  # a slow machine, and the first ones were refused
        audit(seed=2, only=(name,), trials=1, first=tally.trials[name], tally=tally)
    assert [str(find) for find in tally.finds] == []
    assert tally.comparisons > 0


def test_a_seed_repeats_everything() -> None:
    one, two = (audit(seed=3, only=("networks", "files"), trials=3).summary() for _ in range(2))
    assert one == two
    texts = [str(network(Trial("networks", seed, 5, Tally()).draw("network"))) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_a_find_shrinks_to_what_shows_it() -> None:
    pieces = tuple(Piece((f"x = x + {i}",)) for i in range(6))
    text = NetworkText(pieces, 0, ("region = None",))
    small = shrunk(text, lambda each: "x + 3" in str(each) and "x + 4" in str(each))
    assert [piece.forward for piece in small.pieces] == [("x = x + 3",), ("x = x + 4",)]
    with loaded(str(small)) as script:
        assert script.net(torch.zeros(1)).tolist() == [7.0]


def test_every_operator_can_be_drawn() -> None:
    """A rule whose operator has no schema, or whose arguments have a type that is never drawn, would never be tried."""
    draw = Trial("operators", 0, 0, Tally()).draw("operator")
    assert len(rules()) > 240
    for rule in rules():
        assert f"torch.ops.{rule.op}(" in "".join(called(draw, rule).forward)


def test_exact_arithmetic_and_its_text() -> None:
    half = Fraction(1, 2)
    assert exact([([[half, -1 * half]], [half, half])], [Fraction(2)]) == [Fraction(3, 2), -half]
    assert decimal(Fraction(-1, 8)) == "-0.125" and decimal(3) == "3.0"


def test_the_command_counts_and_writes(tmp_path: Path) -> None:
    out = tmp_path / "audit.json"
    command = ["audit", "--only", "instances", "--only", "queries", "--trial", "4", "--json", str(out)]
    result = CliRunner().invoke(build_app(), command)
    assert result.exit_code == 0, result.output
    assert "instances" in result.output and "operators of `surebound ops` were in no network" in result.output
    found = json.loads(out.read_text())
    assert found["trials"] == {"instances": 1, "queries": 1} and found["finds"] == []
    with pytest.raises(InputError, match="no generator is called 'nets'; choose from networks"):
        audit(1, only=("nets",))
