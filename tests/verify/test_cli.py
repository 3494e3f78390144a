"""`surebound verify` and `surebound results` as a user runs them."""

from __future__ import annotations

import csv
import io
import json
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from surebound.cli import build_app
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
    assert [line["clean error"] for line in shown] == ["25.00%"] * 3
    assert [line["verified error"] for line in shown] == ["25.00%", "50.00%", "50.00%"]

    table = list(csv.DictReader(io.StringIO(run("results", folder / "out", "--eps", "0.05", "--format", "csv"))))
    assert list(table[0]) == [
        "index", "label", "prediction", "eps", "status", "stage", "margin_bound", "float_sound", "seconds",
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


def test_mistakes_are_named(folder: Path, data: Path) -> None:
    assert "'fast' has neither a MIP nor an LP stage" in error(
        "verify", TARGET, "--eps", "0.1", "--data", data, "--cascade", "fast", "--tighten", 4
    )
    assert "FIRST:LAST:STEP" in error("verify", TARGET, "--eps", "0:1", "--out", folder)
    assert "choose one of: default, paper, fast" in error(
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
