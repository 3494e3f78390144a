"""The command line of the VNN-LIB standard, to the letter, and the competitions' older one."""

from __future__ import annotations

import csv
import gzip
import importlib.metadata
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from surebound.cli import build_app
from surebound.cli.supports import HELP
from surebound.graph.onnx.importer import operators
from surebound.vnnlib.capabilities import CAPABILITIES
from tests.vnnlib.nets import SUM, VERSION, between, declare

runner = CliRunner()
BOX = VERSION + declare(2, 1) + between([0, 0], [1, 1])
OLD = (
    "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)"
    "(assert (>= X_0 0.0))(assert (<= X_0 1.0))(assert (>= X_1 0.0))(assert (<= X_1 1.0))(assert (>= Y_0 {}))"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.onnx").write_bytes(SUM)
    (tmp_path / "sat.vnnlib").write_text(BOX + "(assert (>= Y[0,0] 2.0))")
    (tmp_path / "unsat.vnnlib").write_text(BOX + "(assert (>= Y[0,0] 2.5))")
    (tmp_path / "old_sat.vnnlib").write_text(OLD.format("2.0"))
    (tmp_path / "old_unsat.vnnlib").write_text(OLD.format("2.5"))
    return tmp_path


def run(*words: object, code: int = 0) -> tuple[str, str]:
    result = runner.invoke(build_app(), [str(word) for word in words], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_the_standards_command(folder: Path) -> None:
    network = f"N={folder / 'net.onnx'}"
    out, log = run("verify", folder / "unsat.vnnlib", "--network", network, "--timeout", "20")
    assert out == "unsat\n"
    assert log
    out, _ = run("verify", folder / "sat.vnnlib", "--network", network, "--timeout", "20")
    assert out.splitlines() == ["sat", "X float32 [1,2]", "1.0", "1.0", "Y float32 [1,1]", "2.0"]


def test_serialised_assignments(folder: Path) -> None:
    network = f"N={folder / 'net.onnx'}"
    out, _ = run(
        "verify",
        folder / "sat.vnnlib",
        "--network",
        network,
        "--serialise-assignments",
        folder / "found" / "here",
    )
    assert out == "sat\n"
    found = {}
    for name in ("X", "Y"):
        proto = onnx.TensorProto()
        proto.ParseFromString((folder / "found" / "here" / f"{name}.pb").read_bytes())
        found[name] = numpy_helper.to_array(proto)
    assert found["X"].dtype == np.float32
    assert found["X"].tolist() == [[1.0, 1.0]]
    assert found["Y"].tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "{}/sat.vnnlib"], "missing: N"),
        (["verify", "{}/sat.vnnlib", "--network", "N"], "give NAME=FILE"),
        (["verify", "{}/sat.vnnlib", "--network", "N={}/net.onnx", "--network", "N={}/net.onnx"], "given twice"),
        (["verify", "{}/sat.vnnlib", "--network", "M={}/net.onnx"], "not wanted: M"),
        (["verify", "{}/sat.vnnlib", "--network", "N={}/nothing.onnx"], "cannot be read"),
        (["verify", "{}/net.onnx", "--network", "N={}/net.onnx"], "is no text|holds no command"),
        (["verify", "--onnx", "{}/net.onnx"], "go together"),
        (["verify"], "is missing"),
        (["verify", "--instances", "{}/nothing.csv"], "cannot be read"),
        (["supports"], "name one of"),
        (["supports", "--onnx-operators", "--unsat-proofs"], "2 capabilities"),
    ],
)  # fmt: skip
def test_errors_go_to_standard_error_with_code_2(words: list[str], message: str, folder: Path) -> None:
    out, log = run(*(word.replace("{}", str(folder)) for word in words), code=2)
    assert out == ""
    assert pytest.importorskip("re").search(message, log), log


def test_the_competitions_habit(folder: Path) -> None:
    with gzip.open(folder / "packed.onnx.gz", "wb") as file:
        file.write(SUM)
    with gzip.open(folder / "packed.vnnlib.gz", "wb") as file:
        file.write(OLD.format("2.0").encode())
    out, _ = run(
        "verify", "--onnx", folder / "packed.onnx.gz", "--vnnlib", folder / "packed.vnnlib.gz", "--timeout", 20,
        "--result-file", folder / "result.txt",
    )  # fmt: skip
    assert out == "sat\n((X_0 1.0)\n (X_1 1.0)\n (Y_0 2.0))\n"
    assert (folder / "result.txt").read_text() == out
    out, _ = run("verify", "--onnx", folder / "net.onnx", "--vnnlib", folder / "old_unsat.vnnlib")
    assert out == "unsat\n"


def test_a_list_of_instances_is_resumable(folder: Path) -> None:
    lines = ["net.onnx,old_sat.vnnlib,20", "net.onnx,unsat.vnnlib,20", "net.onnx,missing.vnnlib,20"]
    (folder / "instances.csv").write_text("\n".join(lines) + "\n")
    words = ("verify", "--instances", folder / "instances.csv", "--onnx-dir", folder, "--out", folder / "out")
    out, log = run(*words, "--format", "csv", code=1)
    table = list(csv.DictReader(io.StringIO(out)))
    assert [line["verdict"] for line in table] == ["sat", "unsat", "error"]
    assert "1 of 3 instances ended in an error, the first is number 2 (missing.vnnlib)" in log
    assert log.count("old_sat.vnnlib") == 1
    (folder / "missing.vnnlib").write_text(OLD.format("2.5"))
    out, log = run(*words, "--format", "csv")
    table = list(csv.DictReader(io.StringIO(out)))
    assert [line["verdict"] for line in table] == ["sat", "unsat", "unsat"]
    assert "old_sat.vnnlib" not in log, "what is settled is not decided again"
    shown, _ = run("results", folder / "out" / "instances.db", "--format", "csv")
    assert shown.count("robust") == 2


def test_a_changed_file_is_decided_again(folder: Path) -> None:
    (folder / "instances.csv").write_text("net.onnx,unsat.vnnlib,20\n")
    words = (
        "verify",
        "--instances",
        folder / "instances.csv",
        "--format",
        "csv",
        "--out",
        folder / "out",
        "--mix",
    )
    run(*words)
    (folder / "unsat.vnnlib").write_text(BOX + "(assert (>= Y[0,0] 3.5))")
    _, log = run(*words)
    assert "unsat.vnnlib: unsat" in log


@pytest.mark.parametrize("name", list(CAPABILITIES))
def test_every_capability_answers_line_by_line(name: str) -> None:
    out, _ = run("supports", f"--{name}")
    assert out.splitlines() == CAPABILITIES[name]()


def test_every_capability_is_described() -> None:
    assert set(HELP) == set(CAPABILITIES) and len(set(HELP.values())) == len(HELP)


def test_capabilities_say_what_is_so() -> None:
    assert run("supports", "--onnx-element-types")[0] == "float32\nreal\n"
    assert set(run("supports", "--onnx-operators")[0].split()) == set(operators())
    assert {"Conv", "Gemm", "Relu", "BatchNormalization", "ConvTranspose", "Gather"} <= set(operators())
    assert run("supports", "--multiple-inputs-output-theories")[0] == "SIO\nMIO\n"
    assert run("--name")[0] == "surebound\n"
    assert run("--version")[0] == importlib.metadata.version("surebound") + "\n"


def test_the_clock_ends_a_process_that_computes_on(tmp_path: Path) -> None:
    """A watchdog prints timed-out even while something does not look at the time."""
    script = (
        "import time\nfrom surebound.cli import verify_query as q\nq.GRACE = 0.1\n"
        "r = q.Reporter(0.2, 'timed-out')\ntime.sleep(30)\nr.write(['unsat'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "timed-out\n")


def test_a_verdict_is_printed_once() -> None:
    script = (
        "import time\nfrom surebound.cli import verify_query as q\nq.GRACE = 0.1\n"
        "r = q.Reporter(0.2, 'timed-out')\nassert r.write(['unsat'])\ntime.sleep(0.6)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "unsat\n")


def test_as_a_process(folder: Path) -> None:
    command = [sys.executable, "-m", "surebound", "verify", "unsat.vnnlib", "--network", "N=net.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    assert (done.returncode, done.stdout) == (0, "unsat\n"), done.stderr


def test_export_then_verify(folder: Path) -> None:
    np.savez(
        folder / "data.npz",
        images=np.array([[0.9, 0.1], [0.5, 0.45], [0.2, 0.8]], dtype=np.float32),
        labels=np.array([0, 0, 1]),
    )
    target, props = "tests.verify.nets:steep", folder / "props"
    words = ("--data", folder / "data.npz", "--eps", "1/20", "--vnnlib-version", "1.0")
    run("export", target, *words, "--onnx", folder / "steep.onnx", "--vnnlib-dir", props)
    out, _ = run("verify", "--instances", props / "instances.csv", "--format", "csv")
    verdicts = [line["verdict"] for line in csv.DictReader(io.StringIO(out))]
    own, _ = run("verify", target, *words[:4], "--out", folder / "own", "--jobs", 1, "--cascade", "fast")
    assert own
    assert verdicts == ["unsat", "sat", "unsat"]
    # Some tools read a disjunction only as (or (and ...) (and ...)).
    assert "(assert (or (and (>= Y_1 Y_0))))" in (props / "0_1over20.vnnlib").read_text()
    run("export", target, *words, "--vnnlib-dir", folder / "one", "--index", 2)
    text = (folder / "one" / "2_1over20.vnnlib").read_text()
    assert [path.name for path in (folder / "one").iterdir()] == ["2_1over20.vnnlib"]
    assert text == (props / "2_1over20.vnnlib").read_text()
