"""The operator table says what the registry says."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import surebound as sb
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.linear.steps import ConstantStep
from surebound.cli import build_app
from surebound.errors import UnsupportedOperatorError
from surebound.graph import program_of
from surebound.numerics import Soundness
from surebound.rules import all_rules
from surebound.search.mip import NetworkEncoder

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
    assert rows["aten.chunk.default"]["linear"] == "exact"  # traced as a split
    for rule in all_rules():
        row = rows[rule.op]
        if rule.affine is not None or rule.relax is not None:
            assert row["linear"] != "-"
        if rule.affine is not None or rule.mip is not None:
            assert row["MIP"] == "exact"


class Halves(nn.Module):
    """Takes its input apart."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "unbind":
            a, b = x.view(-1, 2, 2).unbind(1)
        else:
            a, b = x.split(2, 1)
        return a - b


CASES: dict[str, nn.Module] = {
    "aten.relu.default": nn.ReLU(),
    "aten.leaky_relu.default": nn.LeakyReLU(),
    "aten.prelu.default": nn.PReLU(),
    "aten.hardtanh.default": nn.Hardtanh(),
    "aten.threshold.default": nn.Threshold(0.1, 0.1),
    "aten.tanh.default": nn.Tanh(),
    "aten.gelu.default": nn.GELU(),
    "aten.softmax.int": nn.Softmax(1),
    "aten.split.Tensor": Halves("split"),
    "aten.unbind.int": Halves("unbind"),
}


@pytest.mark.parametrize("op", CASES)
def test_the_table_says_what_the_methods_do(op: str) -> None:
    net = nn.Sequential(nn.Linear(3, 4), CASES[op]).requires_grad_(False)
    x = torch.zeros(1, 3)
    program = program_of(net, x)
    row = table()[next(node.op for node in program.graph.nodes if node.op.startswith(op.rpartition(".")[0]))]
    try:
        NetworkEncoder(program)
    except UnsupportedOperatorError:
        assert row["MIP"] == "-"
    else:
        assert row["MIP"] == "exact"
    relaxed = relax(program, sb.LinfBall(x, "1/100").interval(), Soundness.REAL, own=False)
    lost = any(isinstance(step, ConstantStep) for step in relaxed.steps.values())
    assert lost == (row["linear"] == "-")


def test_pattern_selects_by_operator_and_family() -> None:
    assert {op.split(".")[1][:4] for op in table("CONV")} == {"conv"}


def test_unknown_pattern() -> None:
    result = runner.invoke(build_app(), ["ops", "quaternion"])
    assert result.exit_code == 2
    assert "no supported operator contains 'quaternion'" in result.stderr
