"""`surebound verify` and `surebound results` as a user runs them."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from surebound.cli import build_app
from surebound.cli.exits import EXIT_UNDER
from surebound.errors import RadiusWarning
from surebound.verify.pool import Inline
from tests.verify.nets import steep

runner = CliRunner()
TARGET = "tests.verify.nets:steep"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    images = np.array([[0.9, 0.1], [0.5, 0.45], [0.2, 0.8], [0.4, 0.6]], dtype=np.float32)
    np.savez(folder / "data.npz", images=images, labels=np.array([0, 0, 1, 0]))
    return folder / "data.npz"


def run(*words: object) -> str:
    result = runner.invoke(build_app(), [str(word) for word in words], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output + result.stderr
    return result.stdout


def error(*words: object) -> str:
    result = runner.invoke(build_app(), [str(word) for word in words])
    assert result.exit_code == 2
    return result.stderr


def test_verify_then_results(folder: Path, data: Path) -> None:
    options = ("--data", data, "--out", folder / "out", "--cascade", "fast", "--jobs", "1")
    shown = json.loads(run("verify", TARGET, *options, "--eps", "0:0.1:0.05", "--format", "json"))
    assert [line["eps"] for line in shown] == ["0", "1/20", "1/10"]
    assert [line["clean error"] for line in shown] == [0.25] * 3
    assert [line["verified error"] for line in shown] == [0.25, 0.5, 0.5]
    assert shown[1]["truth in"] == [0.5, 0.5]
    settled = [(line["stage"], line.get("robust"), line.get("falsified")) for line in shown[1]["stages"]]
    assert settled == [("clean", None, 1), ("interval", 2, None), ("crown", None, None), ("pgd", None, 1)]

    table = list(csv.DictReader(io.StringIO(run("results", folder / "out", "--eps", "0.05", "--format", "csv"))))
    assert list(table[0]) == [
        "index", "label", "prediction", "eps", "status", "stage", "margin_bound", "float_sound", "seconds",
        "read_as",
    ]  # fmt: skip
    assert [line["status"] for line in table] == ["robust", "falsified", "robust", "falsified"]
    assert [line["stage"] for line in table] == ["interval", "pgd", "interval", "clean"]

    robust = json.loads(run("results", folder / "out", "--status", "robust", "--format", "json"))
    assert {line["status"] for line in robust} == {"robust"}
    assert all(line["margin_bound"] <= 0 and line["float_sound"] for line in robust)

    run("results", folder / "out", "--eps", "1/20", "--format", "parquet", "--out", folder / "r.parquet",
        "--witnesses", folder / "witnesses")  # fmt: skip
    assert (folder / "r.parquet").stat().st_size
    witness = np.load(folder / "witnesses" / "1.npy", allow_pickle=False)
    for a, b in zip(witness.tolist(), np.load(data)["images"][1].tolist(), strict=True):
        assert abs(Fraction(a) - Fraction(b)) <= Fraction(1, 20)
    assert int(steep()(torch.from_numpy(witness).unsqueeze(0)).argmax()) == 1
    assert "verified error" in run("results", folder / "out", "--eps", "1/20")


def test_without_a_place_results_are_only_shown(data: Path) -> None:
    given = ("verify", TARGET, "--data", data, "--eps", "1/20", "--cascade", "fast", "--jobs", 1)
    done = runner.invoke(build_app(), [str(value) for value in given])
    assert done.exit_code == 0, done.stderr
    assert "verified error" in done.stdout
    assert "results:" not in done.stdout
    assert "not kept; with --out DIR they are" in done.stderr


def test_scripts_get_a_quiet_command_and_an_exit_code(data: Path) -> None:
    given = ["verify", TARGET, "--data", str(data), "--eps", "0,1/20", "--cascade", "fast", "--jobs", "1"]
    quiet = runner.invoke(build_app(), [*given, "--quiet", "--fail-under", "50", "--format", "json"])
    assert quiet.exit_code == 0 and quiet.stderr == "" and len(json.loads(quiet.stdout)) == 2
    under = runner.invoke(build_app(), [*given, "-q", "--fail-under", "60"])
    assert under.exit_code == EXIT_UNDER == 4
    assert under.stderr == ("surebound: 50.00% of the images are proved at eps 1/20, less than --fail-under 60\n"), (
        "and not at eps 0, where 75 % are"
    )


def test_the_question_is_read_back(data: Path) -> None:
    given = ["verify", TARGET, "--data", str(data), "--eps", "1/20", "--cascade", "fast", "--jobs", "1", "--explain"]
    told = runner.invoke(build_app(), given).stderr
    told = " ".join(told.split())
    assert "each differ by at most 0.05" in told and "cut to [0, 1]" in told and "labels 0, 0, 1, 0" in told
    assert "1 of them are misread" in told and "a proof for every float32 execution" in told
    assert "clean -> interval -> crown -> pgd" in told and "tolerance" not in told
    paper = [*given[:-5], "--explain", "--cascade", "paper", "--first", "1", "--jobs", "1"]
    told = " ".join(runner.invoke(build_app(), paper).stderr.split())
    assert "rests on a solver's tolerance (mip, lp)" in told


def test_valid_inputs_of_another_range(folder: Path) -> None:
    images = np.array([[4.5, 0.5], [2.0, 4.0]], dtype=np.float32)
    np.savez(folder / "wide.npz", images=images, labels=np.array([0, 1]))
    given = ("verify", TARGET, "--data", folder / "wide.npz", "--eps", "1/4", "--cascade", "fast", "--jobs", 1)
    assert "they must be in [0, 1]" in error(*given)
    (line,) = json.loads(run(*given, "--clip", "0", "5", "--format", "json"))
    assert line["verified error"] == 0


def test_a_radius_as_wide_as_the_images_is_warned_of(data: Path) -> None:
    given = ["verify", TARGET, "--data", str(data), "--eps", "8", "--cascade", "fast", "--jobs", "1"]
    with pytest.warns(RadiusWarning, match=r"eps 8 is as wide as .* \[0, 1\].* was 8/255 meant"):
        runner.invoke(build_app(), given)


UNGUARDED = """
import torch, surebound as sb
{network}
x = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
print(sb.verify(net, sb.LinfBall(x, "1/50", clip=(0, 1)), torch.zeros(2, dtype=torch.int64), "fast", jobs={jobs}))
"""
PLAIN = "torch.manual_seed(0); net = torch.nn.Sequential(torch.nn.Linear(2, 2))"
CLASS = """
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.stack([x[:, 0], x[:, 1]], 1)
net = Net()
"""


@pytest.mark.parametrize(("network", "jobs"), [(PLAIN, 1), (PLAIN, 2), (CLASS, 1)])
def test_a_script_needs_no_main_guard(tmp_path: Path, network: str, jobs: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(network=network, jobs=jobs), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, env=environment, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Results(") and done.stdout.count("\n") == 1, "the script ran once"


def test_mistakes_are_named(folder: Path, data: Path) -> None:
    assert "'fast' has neither a MIP nor an LP stage" in error(
        "verify", TARGET, "--eps", "0.1", "--data", data, "--cascade", "fast", "--tighten", 4
    )
    assert "FIRST:LAST:STEP" in error("verify", TARGET, "--eps", "0:1", "--out", folder)
    assert "choose one of: default, paper, fast, crown" in error(
        "verify", TARGET, "--eps", "0.1", "--out", folder, "--cascade", "x"
    )
    assert "no results store" in error("results", folder / "nothing")
    assert "a table is for the screen" in error("results", _store(folder), "--out", folder / "x")


def _store(folder: Path) -> Path:
    from surebound.verify import Store
    from surebound.verify.identity import Identity

    Store.open(folder / "empty" / "results.db", Identity("w", "s", "c")).close()
    return folder / "empty"


def test_who_stops_it_is_told_whether_it_goes_on(folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["surebound.verify"], "verify", stopped)
    words = ["verify", TARGET, "--data", str(data), "--eps", "0.05"]
    kept = runner.invoke(build_app(), [*words, "--out", str(folder / "stopped")])
    assert "stopped; the same command goes on from here" in kept.stderr
    assert kept.exit_code == 130
    assert "nothing was kept: use --out DIR" in runner.invoke(build_app(), words).stderr


def test_errors_are_told_with_their_reason(folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all images that share it, with exit code 1; `results` tells it too."""
    from surebound.search.cascade import cascade

    def fail(*_: object) -> None:
        raise RuntimeError("no such luck")

    for stage in cascade("fast").stages[1:]:
        monkeypatch.setattr(type(stage), "decide", fail)
    options = ["--data", str(data), "--eps", "1/10", "--cascade", "fast", "--out", str(folder / "broken")]
    monkeypatch.setattr(sys.modules["surebound.verify.run"], "ProcessPool", lambda work, jobs: Inline(work))
    result = runner.invoke(build_app(), ["verify", TARGET, *options])
    assert result.exit_code == 1
    assert "3 image(s) ended in an error: " in result.stderr
    assert result.stderr.count("no such luck") == 1
    listed = runner.invoke(build_app(), ["results", str(folder / "broken")])
    assert listed.exit_code == 0
    assert "no such luck" in listed.stderr
