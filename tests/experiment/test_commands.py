"""The commands of training, through the command line itself."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from surebound import data, zoo
from surebound.cli import build_app
from surebound.experiment import publish
from surebound.experiment.config import Config
from surebound.experiment.presets import preset
from surebound.experiment.terminal import Terminal
from surebound.region import LinfBall
from surebound.train.evaluate import Errors
from surebound.train.observe import Progress
from surebound.verify import verify


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), list(arguments))


def test_presets_are_listed() -> None:
    shown = invoke("presets", "mnist-small-ibp", "--format", "json")
    assert shown.exit_code == 0, shown.output
    rows = {row["preset"]: row for row in json.loads(shown.stdout)}
    assert rows["mnist-small-ibp-0.4"] == {
        "preset": "mnist-small-ibp-0.4", "method": "ibp", "eps_train": "2/5",
        "steps": 60_000, "batch": 100, "warm-up": 2_000, "ramp": 10_000,
    }  # fmt: skip
    assert all("mnist-small-ibp" in name for name in rows)


def test_a_shown_configuration_can_be_read_back(tmp_path: Path) -> None:
    shown = invoke("show-config", "digits-ibp")
    assert Config.from_toml(shown.stdout) == preset("digits-ibp")
    (tmp_path / "mine.toml").write_text(shown.stdout, encoding="utf-8")
    assert invoke("show-config", str(tmp_path / "mine.toml")).stdout == shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "digits-ipb"), "no preset is called 'digits-ipb'; did you mean 'digits-ibp'?"),
        (("train", "digits-ibp", "--eps-train", "-0.1"), "--eps-train -0.1: a radius is 0 or more"),
        (("train", "digits-ibp", "--eps-train", "x"), "--eps-train='x' is not a finite number"),
        (("train", "digits-ibp", "--steps", "5", "--epochs", "2"), "--steps and --epochs were both given"),
        (("train", "digits-nominal", "--eps-train", "0.1"), "'nominal' has no use for a radius"),
        (("train", "digits-ibp", "--method", "sarb"), "--method sarb is no training method; did you mean 'sabr'?"),
        (("train", "digits-nominal", "--method", "sabr"), "eps_train is 0, but the method 'sabr' trains against"),
        (("train", "digits-ibp", "--threads", "0"), "threads must be at least 1"),
        (("train", "digits-ibp", "--accumulate", "101"), "accumulate = 101 parts of a batch of 100"),
        (("train", "digits-ibp", "--steps", "0"), "steps must be at least 1, got 0"),
        (("train", "digits-ibp", "--epochs", "-1"), "epochs must be more than 0, got -1"),
        (("presets", "zzz"), "no preset contains 'zzz'; 'surebound presets' lists"),
        (("train", "mine.toml"), "cannot read the configuration mine.toml"),
        (("resume", "nowhere"), "nowhere is no run directory"),
        (("evaluate", "nowhere"), "'nowhere' is nothing to load. Give a run directory"),
        (("evaluate", "surebound.zoo.architecture:digits", "--data", "digits"), "no radius is known"),
        (("zoo", "--add", "runs/x"), "--add and --as belong together"),
    ],
)
@pytest.mark.filterwarnings("ignore::surebound.errors.UntrainedWarning")  # one of the networks is
def test_mistakes_are_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run")) if arguments[0] == "train" else ()
    done = invoke(*arguments, *out)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["exp-ibp", "taps", "nominal"])
def test_a_recipe_by_another_method(method: str, tmp_path: Path) -> None:
    done = invoke(
        "train", "digits-mtl-ibp", "--method", method, "--steps", "6", "--threads", "1", "--out", str(tmp_path / "r")
    )
    assert done.exit_code == 0, done.output
    assert Config.read(tmp_path / "r" / "config.toml").method.name == method


def test_a_plan_says_what_a_run_takes_and_starts_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    shown = invoke("train", "digits-ibp", "--steps", "40", "--accumulate", "4", "--plan", "--out", str(out))
    assert shown.exit_code == 0, shown.output
    assert "40 steps of 100 images, in 4 parts of 25: 2.8 epochs of 1,442; warm-up 2, ramp 16" in shown.stdout
    step = float(re.search(r"([\d.e-]+) s at the full radius", shown.stdout)[1])
    memory = float(re.search(r"memory: ([\d.]+) GB at most", shown.stdout)[1])
    assert 0 < step < 5 and 0.1 < memory < 20 and not out.exists()


def test_train_evaluate_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, numbers = tmp_path / "run", tmp_path / "numbers.json"
    done = invoke(
        "train", "digits-ibp", "--steps", "40", "--eps-train", "1/50", "--eps-test", "1/50", "--kappa-final", "0",
        "--seed", "5", "--threads", "1", "--out", str(run),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "finished: held-out clean" in done.stdout
    assert "digits-ibp: starting at step 0 of 40" in done.stderr
    assert "40/40" in done.stderr
    plan = Config.read(run / "config.toml").plan
    assert (str(plan.eps_train), plan.kappa_final, plan.seed, plan.steps) == ("1/50", 0.0, 5, 40)

    shown = invoke("evaluate", str(run), "--first", "50", "--pgd-steps", "3", "--format", "csv", "--out", str(numbers))
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[0] == "eps,clean error,PGD error,unproved (IBP)"
    assert shown.stdout.splitlines()[1].startswith("1/50,")
    record = json.loads(numbers.read_text())
    assert record["images"] == 50
    assert record["clean_error"] <= record["pgd_error"]["1/50"] <= record["verified_error"]["1/50"]

    monkeypatch.setattr(zoo, "NETS_DIRECTORY", tmp_path / "nets")
    assert invoke("zoo", "--add", str(run), "--as", "digits-0.02").exit_code == 0
    (row,) = json.loads(invoke("zoo", "--format", "json").stdout)
    assert (row["network"], row["data"], row["eps_train"], row["eps"]) == (
        "digits-0.02",
        "digits",
        "1/50",
        "1/50",
    )
    assert (row["method"], row["parameters"]) == ("ibp", sum(p.numel() for p in zoo.load("digits-0.02").parameters()))
    assert 0 <= row["core-hours"] < 1
    said = invoke("zoo", "digits-0.02").stdout
    assert f"{row['parameters']:,} parameters, for digits" in said
    assert "ibp, eps_train 1/50, seed 5; core-hours" in said
    assert (
        "no packaged network is called 'digits-0.03'; did you mean 'digits-0.02'?"
        in invoke("zoo", "digits-0.03").stderr
    )
    again = invoke("train", "digits-ibp", "--out", str(run))
    assert again.exit_code == 2
    assert "holds a run already" in again.stderr

    model, test = zoo.load("digits-0.02"), data.load("digits").test
    x, y = test.batch(torch.arange(len(test)))
    verify(model, LinfBall(x[:9], "1/50", clip=(0, 1)), y[:9], "fast", out=tmp_path / "some")
    refused = invoke("zoo", "--verified", str(tmp_path / "some"), "--as", "digits-0.02")
    assert refused.exit_code == 2
    assert "let `surebound verify` decide all of them" in " ".join(refused.stderr.split())
    monkeypatch.setattr(publish, "FIRST", 9)
    assert invoke("zoo", "--verified", str(tmp_path / "some"), "--as", "digits-0.02").exit_code == 0
    assert zoo.entry("digits-0.02").decided("1/50")["images"] == 9
    said = " ".join(invoke("zoo", "digits-0.02").stdout.split())
    assert f"PGD and verified errors are of the first 9 of {len(test)} images" in said
    found = verify(model, LinfBall(x, "1/50", clip=(0, 1)), y, "fast", out=tmp_path / "proofs").summary()
    assert invoke("zoo", "--verified", str(tmp_path / "proofs"), "--as", "digits-0.02").exit_code == 0
    (row,) = json.loads(invoke("zoo", "--format", "json").stdout)
    assert row["PGD error"] == found.pgd_error
    assert row["unproved"] == found.float_sound_error
    with torch.no_grad():
        next(model.parameters()).add_(1)
    verify(model, LinfBall(x[:9], "1/50", clip=(0, 1)), y[:9], "fast", out=tmp_path / "other")
    refused = invoke("zoo", "--verified", str(tmp_path / "other"), "--as", "digits-0.02")
    assert "results of other weights than those of digits-0.02" in " ".join(refused.stderr.split())


def test_the_live_line_shows_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(
        step=50, steps=100, scalars={"loss": 0.25, "clean_error": 0.02, "verified_error": 0.1},
        epsilon=0.1, kappa=0.5, rate=1e-3, samples_per_second=1234.0, seconds_left=3725.0,
    )  # fmt: skip
    errors = Errors(10, 0.03, {Fraction(1, 10): 0.2}, {Fraction(1, 10): 0.1}, 10, "none")
    for live in (True, False):
        with Terminal("digits-ibp", live=live) as terminal:
            terminal.started(0, 100)
            terminal.evaluated(40, errors)
            terminal.progressed(progress)
        shown = capsys.readouterr().err
        wanted = ["digits-ibp: starting at step 0 of 100", "50/100 ETA 1:02:05", "loss 0.250", "clean 2.0%"]
        wanted += [
            "verified 10.0%",
            "eps 0.1",
            "kappa 0.5",
            *(() if live else ("1234/s",)),
        ]  # 80 columns cut it
        wanted += ["step 40: held-out clean 3.00%  verified@0.1 20.00%  pgd@0.1 10.00%"]
        assert all(text in shown for text in wanted), shown
