"""The operator table says what the registry says."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from surebound.cli import build_app
from surebound.rules import all_rules

runner = CliRunner()


def table(*arguments: str) -> dict[str, dict[str, str]]:
    result = runner.invoke(build_app(), ["ops", "--format", "json", *arguments])
    assert result.exit_code == 0, result.output
    return {row["operator"]: row for row in json.loads(result.stdout)}


def test_every_rule_is_listed() -> None:
    assert set(table()) == {rule.op for rule in all_rules()}


def test_abilities() -> None:
    rows = table()
    assert rows["aten.conv2d.default"]["interval"] == "yes"
    assert rows["aten.conv2d.default"]["linear"] == "exact"
    for rule in all_rules():
        row = rows[rule.op]
        assert (row["linear"] == "-") == (rule.affine is None and rule.relax is None)
        assert (row["MIP"] == "-") == (rule.affine is None and rule.mip is None)


def test_pattern_selects_by_operator_and_family() -> None:
    assert {op.split(".")[1][:4] for op in table("CONV")} == {"conv"}


def test_unknown_pattern() -> None:
    result = runner.invoke(build_app(), ["ops", "quaternion"])
    assert result.exit_code == 2
    assert "no supported operator contains 'quaternion'" in result.stderr
