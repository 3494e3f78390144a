"""The comparison with other verifiers believes nobody: counterexamples are run again, answers compared."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.peers.check import checked
from benchmarks.peers.instances import read_list
from benchmarks.peers.race import Line
from benchmarks.peers.table import table
from surebound.vnnlib.files import write_network, write_questions


def test_a_claimed_counterexample_is_run_again(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    net = nn.Sequential(nn.Linear(2, 2, bias=False)).requires_grad_(False)
    net[0].weight.copy_(torch.eye(2))
    image = torch.tensor([[0.5, 0.4]])
    write_network(net, image, tmp_path / "net.onnx")
    write_questions(image, torch.tensor([0]), 2, "0.1", tmp_path, "1.0")
    files = (tmp_path / "net.onnx", tmp_path / "0_0.1.vnnlib", 0)
    assert checked("sat", "sat\n((X_0 0.42)\n(X_1 0.45)\n(Y_0 0.42)\n(Y_1 0.45))", *files) == "confirmed"
    assert "label wins" in checked("sat", "sat\n((X_0 0.45)\n(X_1 4.2e-1))", *files)
    assert "outside the box" in checked("sat", "sat\n((X_0 0.3)\n(X_1 0.45))", *files)
    assert "no counterexample" in checked("sat", "sat", *files)
    assert checked("unsat", "unsat", *files) == ""


def test_the_table_counts_what_is_wrong_and_what_is_late(tmp_path: Path) -> None:
    def line(tool: str, index: int, verdict: str, check: str, seconds: float) -> Line:
        return Line(tool, "1", "net", "0.1", index, verdict, check, seconds, 2.0, seconds, seconds, "cpu")

    lines = [
        line("a", 0, "sat", "confirmed", 3.0), line("a", 1, "unsat", "", 5.0),
        line("b", 0, "unsat", "", 4.0), line("b", 1, "timeout", "", 70.0),
        line("b", 2, "unsat", "", 4.0),  # not asked of a: not counted
    ]  # fmt: skip
    file = tmp_path / "r.jsonl"
    file.write_text("".join(json.dumps(asdict(each)) + "\n" for each in lines))
    assert table(file).splitlines()[2:] == [
        "| 0.1 | a 1 | 2 | 2 | 0 | 2.0 | 4 | 8 |",
        "| 0.1 | b 1 | 2 | 1 | 1 | 31.0 | 62 | 66 |",
    ]


def test_the_list_asks_enough() -> None:
    instances = read_list()
    assert len(set(instances)) == len(instances)
    assert all(sum(each.eps == eps for each in instances) >= 20 for eps in ("0.1", "0.3"))
