"""The command that a packaged network records is one that anybody can repeat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from surebound.cli import build_app
from surebound.errors import RunError
from surebound.experiment.publish import portable, publish


def test_directories_and_threads_of_one_machine_are_left_out():
    machine = "--threads 1 --out /home/me/run --data-dir=/home/me/data --reuse /home/me/runs --jobs 1"
    given = f"/home/me/bin/surebound train mnist-small-ibp --eps-train 0.4 {machine} --seed 0"
    assert portable(given) == "surebound train mnist-small-ibp --eps-train 0.4 --seed 0"


def test_errors_on_held_out_training_images_are_named_so_and_never_published(tmp_path: Path):
    run = tmp_path / "run"
    words = ["train", "digits-nominal", "--steps", "3", "--hold-out", "100", "--l1", "1e-6", "--out", str(run)]
    done = CliRunner().invoke(build_app(), words)
    assert done.exit_code == 0, done.output
    found = json.loads((run / "results.json").read_text())
    assert found["images"] == found["held_out_of_training"] == 100
    assert "l1 = 1e-06" in (run / "config.toml").read_text()
    with pytest.raises(RunError, match="measured on 100 training images that it held out"):
        publish(run, "mine", tmp_path)
