"""The competitions' three scripts, end to end: two formats of queries, one and two networks, and refusals."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from surebound.graph.onnx.file import parse_model
from surebound.vnnlib.runtime import Session
from tests.vnnlib.nets import SUM, VERSION, dense

SCRIPTS = Path(__file__).parents[2] / "competition"
OLD = (
    "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)"
    "(assert (>= X_0 0.1))(assert (<= X_0 0.9))(assert (>= X_1 0.1))(assert (<= X_1 0.9))(assert (>= Y_0 {}))"
)
TWO = (
    VERSION
    + """
(declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [1,1]))
(declare-network g (declare-input A float32 [1,2]) (declare-output B float32 [1,1]))
(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 1.0)))
(assert (and (== X[0,0] A[0,0]) (== X[0,1] A[0,1])))
"""
)

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the scripts are for bash")


def script(name: str, *words: object, code: int = 0) -> str:
    environment = {**os.environ, "SUREBOUND": f"{sys.executable} -m surebound"}
    command = ["bash", str(SCRIPTS / name), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.onnx").write_bytes(SUM)
    (tmp_path / "other.onnx").write_bytes(dense([[[1.0], [2.0]]], [[0.0]]))
    (tmp_path / "sat.vnnlib").write_text(OLD.format("1.5"))
    (tmp_path / "unsat.vnnlib").write_text(OLD.format("1.9"))
    (tmp_path / "two_sat.vnnlib").write_text(TWO + "(assert (< (+ Y[0,0] 0.5) B[0,0]))")
    (tmp_path / "two_unsat.vnnlib").write_text(TWO + "(assert (< (+ Y[0,0] 1.5) B[0,0]))")
    return tmp_path


def run(folder: Path, onnx: object, query: str) -> list[str]:
    script("prepare_instance.sh", "v1", "kind", onnx, folder / query)
    script("run_instance.sh", "v1", "kind", onnx, folder / query, folder / "out.txt", 60)
    return (folder / "out.txt").read_text().splitlines()


def test_one_network(folder: Path) -> None:
    assert run(folder, folder / "net.onnx", "unsat.vnnlib") == ["unsat"]
    verdict, *witness = run(folder, folder / "net.onnx", "sat.vnnlib")
    assert verdict == "sat"
    text = "\n".join(witness)
    assert text.startswith("((X_0 ") and text.endswith("))")
    numbers = {name: float(value) for name, value in re.findall(r"\(([XY]_[0-9]) ([-0-9.]+)\)", text)}
    assert list(numbers) == ["X_0", "X_1", "Y_0"]
    x = np.array([[numbers["X_0"], numbers["X_1"]]], np.float32)
    assert all(0.1 <= numbers[name] <= 0.9 for name in ("X_0", "X_1"))
    model = parse_model((folder / "net.onnx").read_bytes())
    found = Session(model).run({model.inputs[0].name: x})[model.outputs[0][0]]
    assert float(found.reshape(-1)[0]) == np.float32(numbers["Y_0"]) >= 1.5


def test_a_network_that_equals_another_comes_with_its_file_again(folder: Path) -> None:
    equal = TWO.replace("(declare-network g ", "(declare-network g (equal-to f) ")
    (folder / "equal_unsat.vnnlib").write_text(equal + "(assert (> Y[0,0] (+ B[0,0] 0.25)))")
    (folder / "equal_sat.vnnlib").write_text(equal + "(assert (> (+ Y[0,0] B[0,0]) 3.5))")
    shutil.copy(folder / "net.onnx", folder / "copy.onnx")
    for again in ("net.onnx", "copy.onnx"):
        networks = f"[('f', '{folder / 'net.onnx'}'), ('g', '{folder / again}')]"
        assert run(folder, networks, "equal_unsat.vnnlib") == ["unsat"]
    assert run(folder, networks, "equal_sat.vnnlib")[0] == "sat"
    networks = f"[('f', '{folder / 'net.onnx'}'), ('g', '{folder / 'other.onnx'}')]"
    stderr = script("run_instance.sh", "v1", "kind", networks, folder / "equal_sat.vnnlib", folder / "out.txt", 60)
    assert "g equals f" in stderr and (folder / "out.txt").read_text() == "unknown\n"


def test_two_networks(folder: Path) -> None:
    networks = f"[('f', '{folder / 'net.onnx'}'), ('g', '{folder / 'other.onnx'}')]"
    assert run(folder, networks, "two_unsat.vnnlib") == ["unsat"]
    verdict, *witness = run(folder, networks, "two_sat.vnnlib")
    assert verdict == "sat"
    heads = [line for line in witness if " " in line]
    assert heads == ["X float32 [1,2]", "Y float32 [1,1]", "A float32 [1,2]", "B float32 [1,1]"]
    x, y, a, b = np.split(np.array([float(line) for line in witness if " " not in line]), [2, 3, 5])
    assert (x == a).all() and y[0] + 0.5 < b[0]


def test_what_is_refused_is_unknown_and_exits_with_0(folder: Path) -> None:
    (folder / "bad.onnx").write_bytes(b"no network")
    (folder / "out.txt").write_text("sat\n")  # of an earlier run
    assert run(folder, folder / "bad.onnx", "sat.vnnlib") == ["unknown"]
    assert run(folder, "[('f', ", "two_sat.vnnlib") == ["unknown"]


def test_arguments_are_checked(folder: Path) -> None:
    assert "must be v1" in script("run_instance.sh", "v2", code=1)
    assert "CATEGORY ONNX VNNLIB OUT TIMEOUT" in script("run_instance.sh", "v1", "kind", code=1)
    assert "must be v1" in script("prepare_instance.sh", code=1)
    assert "is missing" in script("prepare_instance.sh", "v1", "kind", "net.onnx", folder / "none", code=1)
    assert "must be v1" in script("install_tool.sh", code=1)
