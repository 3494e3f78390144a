"""Runs: directories, signals, kill -9 and resume, targets and packaging; on the embedded digits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from surebound import zoo
from surebound.errors import ConfigError, InputError, RunError
from surebound.experiment import run
from surebound.experiment.config import Config, RunConfig
from surebound.experiment.metrics import MetricsFile, read_metrics
from surebound.experiment.overrides import Overrides
from surebound.experiment.presets import preset
from surebound.experiment.publish import publish
from surebound.experiment.rundir import RunDirectory, fresh_path
from surebound.experiment.target import load_target
from surebound.train.observe import Observer, Progress
from surebound.train.plan import Plan

STEPS = 60


def config(**changes: object) -> Config:
    short = Overrides(steps=STEPS, batch_size=50, seed=1).apply(preset("digits-ibp"))
    evaluation = replace(short.evaluation, every=20, pgd_steps=2, pgd_images=20, images=100)
    return replace(short, evaluation=evaluation, run=RunConfig(threads=1, log_every=10), **changes)  # type: ignore[arg-type]


def caller(stop_after: int | None = None) -> run.Caller:
    calls = iter(range(1, 10**6))
    stop = (lambda: False) if stop_after is None else (lambda: next(calls) >= stop_after)
    return run.Caller(Observer(), stop=stop)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One uninterrupted run."""
    path = tmp_path_factory.mktemp("runs") / "straight"
    result = run.start(config(), path, caller())
    assert result.outcome.finished
    return path


def same_weights(a: Path, b: Path) -> bool:
    left, right = load_file(a / "final.safetensors"), load_file(b / "final.safetensors")
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def numbers(path: Path) -> list[dict[str, object]]:
    """The metrics without what depends on the clock."""
    return [{k: v for k, v in r.items() if k != "samples_per_second"} for r in read_metrics(path / "metrics.jsonl")]


class TestRunDirectory:
    def test_holds_everything(self, finished: Path) -> None:
        names = {p.name for p in finished.iterdir()}
        assert {
            "config.toml",
            "environment.json",
            "metrics.jsonl",
            "checkpoints",
            "final.safetensors",
        } <= names
        assert RunDirectory.open(finished).config == config()
        environment = json.loads((finished / "environment.json").read_text())
        assert environment["seed"] == 1
        assert environment["threads"] == 1
        assert environment["data"]["status"] == "official"
        assert {"python", "packages", "commit", "processor"} <= environment.keys()
        results = json.loads((finished / "results.json").read_text())
        assert results["images"] == 355
        assert results["soundness"] == "deployed"
        assert results["clean_error"] <= results["pgd_error"]["1/10"] + 0.2
        assert results["verified_error"].keys() == {"1/10"}

    def test_metrics(self, finished: Path) -> None:
        records = read_metrics(finished / "metrics.jsonl")
        training = [r["step"] for r in records if r["kind"] == "training"]
        assert training == [10, 20, 30, 40, 50, 60]
        assert [r["step"] for r in records if r["kind"] == "evaluation"] == [20, 40, 60]
        assert {"loss", "epsilon", "kappa", "learning_rate", "samples_per_second"} <= records[-2].keys()

    def test_is_not_overwritten(self, finished: Path, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="holds a run already: continue it with `surebound resume"):
            run.start(config(), finished, caller())
        (tmp_path / "mine.txt").touch()
        with pytest.raises(RunError, match="is not an empty directory"):
            run.start(config(), tmp_path, caller())
        with pytest.raises(RunError, match="cannot create the run directory"):
            run.start(config(), tmp_path / "mine.txt" / "run", caller())

    def test_a_start_that_was_killed_before_anything_was_there_may_be_repeated(self, tmp_path: Path) -> None:
        (tmp_path / ".config.toml.partial").write_text("name =", encoding="utf-8")
        created = RunDirectory.create(tmp_path, config())
        assert created.config == config() and not (tmp_path / ".config.toml.partial").exists()

    def test_what_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="is no run directory"):
            run.resume(tmp_path, caller())
        (tmp_path / "config.toml").write_text("nme = 1", encoding="utf-8")
        with pytest.raises(RunError, match=r"cannot be read: .*unknown key 'nme'; did you mean 'name'\?"):
            run.resume(tmp_path, caller())

    def test_fresh_names(self) -> None:
        assert fresh_path(config()).name.endswith("-digits-ibp-seed1")


class TestResume:
    def test_after_requests_to_stop(self, finished: Path, tmp_path: Path) -> None:
        path = tmp_path / "stopped"
        assert not run.start(config(), path, caller(stop_after=7)).outcome.finished
        assert not (path / "final.safetensors").exists()
        assert run.resume(path, caller(stop_after=26)).outcome.step == 33
        assert run.resume(path, caller()).outcome.finished
        assert same_weights(finished, path)
        steps = [r["step"] for r in read_metrics(path / "metrics.jsonl") if r["kind"] == "training"]
        assert steps == [10, 20, 30, 40, 50, 60]
        kept = [r for r in numbers(path) if r["kind"] == "evaluation"]
        assert kept == [r for r in numbers(finished) if r["kind"] == "evaluation"]

    def test_a_finished_run_stays_as_it_is(self, finished: Path) -> None:
        before = (finished / "final.safetensors").read_bytes()
        assert run.resume(finished, caller()).outcome.finished
        assert (finished / "final.safetensors").read_bytes() == before
        assert len(json.loads((finished / "environment.json").read_text())["resumed"]) == 1

    def test_other_data_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        run.start(config(), path, caller(stop_after=1))
        record = json.loads((path / "environment.json").read_text())
        record["data"]["digest"] = "0" * 64
        (path / "environment.json").write_text(json.dumps(record))
        with pytest.raises(RunError, match="the data differ from those the run .* began with"):
            run.resume(path, caller())


@contextmanager
def launch(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the command line, ended with the block."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", "surebound", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_step(path: Path, least: int, process: subprocess.Popen[str]) -> None:
    """Until a checkpoint of at least `least` steps is there."""
    end = time.monotonic() + 200
    while time.monotonic() < end:
        steps = [int(p.name.removeprefix("step-")) for p in (path / "checkpoints").glob("step-*")]
        if steps and max(steps) >= least:
            return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    raise AssertionError("no checkpoint appeared")


@pytest.mark.timeout(400)
def test_kill_9_and_sigterm_then_resume_to_the_same_bits(tmp_path: Path) -> None:
    """Real processes: one killed in the middle of writing checkpoints, its successor asked to stop, a third ends."""
    steps, straight, path = 400, tmp_path / "straight", tmp_path / "killed"
    base = Overrides(steps=steps, batch_size=20).apply(preset("digits-adversarial"))  # draws in every step
    base = replace(base, evaluation=replace(base.evaluation, every=0, pgd_steps=0), run=RunConfig(threads=1))
    (tmp_path / "run.toml").write_text(base.to_toml(), encoding="utf-8")
    with launch("train", str(tmp_path / "run.toml"), "--checkpoint-seconds", "0", "--out", str(path)) as first:
        assert run.start(base, straight, caller()).outcome.finished  # meanwhile, here
        wait_for_step(path, 5, first)
        first.kill()
    killed_at = max(RunDirectory.open(path).checkpoints().steps())
    assert killed_at < steps
    with launch("resume", str(path)) as second:
        wait_for_step(path, killed_at + 3, second)
        second.send_signal(signal.SIGTERM)
        output, _ = second.communicate(timeout=100)
    assert second.returncode == 3, output
    assert f"resuming at step {killed_at}" in output
    assert f"continue with: surebound resume {path}" in output
    RunDirectory(path).write("config.toml", base.to_toml())  # no more checkpoints at every step: faster
    assert run.resume(path, caller()).outcome.finished
    assert same_weights(straight, path)


class TestMetricsFile:
    def progress(self, step: int) -> Progress:
        return Progress(step, 100, {"loss": 1.0}, 0.1, 0.5, 1e-3, 10.0, 3.0)

    def test_steps_that_are_repeated_are_dropped(self, tmp_path: Path) -> None:
        metrics = MetricsFile(tmp_path / "metrics.jsonl")
        for step in (10, 20, 30):
            metrics.progressed(self.progress(step))
        with open(metrics.path, "a", encoding="utf-8") as file:
            file.write('{"kind": "training", "st')  # killed while writing
        metrics.started(20, 100)
        metrics.progressed(self.progress(30))
        assert [r["step"] for r in read_metrics(metrics.path)] == [10, 20, 30]

    def test_a_full_disk_is_said_so(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="could not write .*free some space and resume"):
            MetricsFile(tmp_path / "none" / "metrics.jsonl").progressed(self.progress(1))


@pytest.mark.filterwarnings("ignore::surebound.errors.UntrainedWarning")  # factories draw their weights
class TestTarget:
    def test_a_run(self, finished: Path) -> None:
        target = load_target(str(finished))
        assert target.name == "digits-ibp"
        assert target.radii == (Fraction(1, 10),)
        assert not target.model.training
        x, y = target.test().batch(torch.arange(355))
        results = json.loads((finished / "results.json").read_text())
        wrong = (target.model(x).argmax(1) != y).double().mean().item()
        assert wrong == pytest.approx(results["clean_error"])

    def test_an_unfinished_run_gives_its_last_checkpoint(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        RunDirectory.create(path, config())
        with pytest.raises(RunError, match="neither final weights nor a checkpoint yet"):
            load_target(str(path))
        path = tmp_path / "begun"
        run.start(config(), path, caller(stop_after=3))
        saved = load_file(path / "checkpoints" / "step-000000003" / "weights.safetensors")
        assert torch.equal(load_target(str(path)).model.state_dict()["1.weight"], saved["1.weight"])

    def test_a_factory(self, tmp_path: Path) -> None:
        spec = "surebound.zoo.architecture:digits"
        model = load_target(spec).model
        weights = {k: torch.full_like(v, 0.5) for k, v in model.state_dict().items()}
        save_file(weights, tmp_path / "w.safetensors")
        filled = load_target(spec, weights=tmp_path / "w.safetensors", data="digits")
        assert filled.model.state_dict()["1.weight"].unique().tolist() == [0.5]
        assert len(filled.test()) == 355
        with pytest.raises(InputError, match="no data are known for"):
            load_target(spec).test()

    def test_a_file_of_arrays(self, tmp_path: Path) -> None:
        import numpy as np

        np.savez(tmp_path / "mine.npz", images=np.zeros((3, 1, 8, 8), np.float32), labels=np.arange(3))
        test = load_target("surebound.zoo.architecture:digits", data=str(tmp_path / "mine.npz")).test()
        assert test.labels.tolist() == [0, 1, 2]

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            (
                "nowhere",
                r"'nowhere' is nothing to load\. Give a run directory .* an ONNX file \(.onnx or .onnx.gz\), "
                "the name of a packaged network, a factory like .* or a factory with weights .* Packaged: .*-ibp-0.4",
            ),
            (
                "mnist-small-ibp-0.3",
                "is nothing to load; did you mean 'mnist-small-ibp-0.[24]'\\? Give a run directory",
            ),
            ("no_such_package.nets:build", "cannot import 'no_such_package.nets'"),
            ("surebound.zoo.architecture:nothing", "has no 'nothing'"),
            ("surebound.zoo.architecture:Architecture", "needs the argument\\(s\\) name, in_shape, classes"),
            ("surebound.errors:SureboundError", "gives a SureboundError; it must give a torch.nn.Module"),
        ],
    )
    def test_what_is_no_target(self, spec: str, message: str) -> None:
        with pytest.raises(InputError, match=message):
            load_target(spec)

    def test_weights_that_do_not_fit(self, tmp_path: Path) -> None:
        save_file({"a": torch.zeros(1)}, tmp_path / "w.safetensors")
        spec = "surebound.zoo.architecture:digits"
        with pytest.raises(InputError, match="do not fit the network"):
            load_target(spec, weights=tmp_path / "w.safetensors")
        (tmp_path / "bad.safetensors").write_bytes(b"no")
        with pytest.raises(InputError, match="no readable safetensors file"):
            load_target(spec, weights=tmp_path / "bad.safetensors")
        with pytest.raises(InputError, match="do not exist"):
            load_target(spec, weights=tmp_path / "none.safetensors")


class TestZoo:
    def test_a_run_is_packaged_and_loaded_by_name(
        self, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(zoo, "NETS_DIRECTORY", tmp_path)
        assert publish(finished, "digits-test-0.1") == tmp_path / "digits-test-0.1.safetensors"
        (entry,) = zoo.entries()
        assert (entry.name, entry.data, entry.preset, entry.eps_train) == (
            "digits-test-0.1",
            "digits",
            "digits-ibp",
            "1/10",
        )
        assert entry.results["images"] == 355
        model = zoo.load("digits-test-0.1")
        final = load_file(finished / "final.safetensors")
        assert all(torch.equal(v, final[k]) for k, v in model.state_dict().items())
        assert load_target("digits-test-0.1").radii == (Fraction(1, 10),)
        with pytest.raises(InputError, match="weights of its own; leave the other ones out"):
            load_target("digits-test-0.1", weights=tmp_path / "w.safetensors")
        with pytest.raises(
            InputError, match=r"no packaged network is called 'digits-tset'; did you mean 'digits-test-0.1'\?"
        ):
            zoo.load("digits-tset")

    def test_packaged_networks_are_what_they_say(self) -> None:
        for entry in zoo.entries():
            model = zoo.load(entry.name)
            assert isinstance(model, nn.Module)
            assert not model.training
            x = torch.rand(2, *entry.architecture.in_shape)
            assert model(x).shape == (2, entry.architecture.classes)

    def test_refusals(self, finished: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="small letters, digits, dots and dashes, got '../x'"):
            publish(finished, "../x", tmp_path)
        RunDirectory.create(tmp_path / "run", config())
        with pytest.raises(RunError, match="is not finished"):
            publish(tmp_path / "run", "name", tmp_path)
        with pytest.raises(ConfigError, match=r"model.name = 'smal' is no network; did you mean 'small'\?"):
            zoo.Architecture("smal", (1, 8, 8), 10)


def test_two_processes_do_not_train_one_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert not run.start(config(), path, caller(stop_after=5)).outcome.finished
    with RunDirectory.open(path).alone(), pytest.raises(RunError, match="another process is training"):
        run.resume(path, caller())
    assert run.resume(path, caller()).outcome.finished


def test_an_unusable_device_is_named(tmp_path: Path) -> None:
    broken = replace(config(), run=RunConfig(device="cuda:7", threads=1))
    if torch.cuda.is_available():
        pytest.skip("there are GPUs here")
    with pytest.raises(ConfigError, match="the device 'cuda:7' cannot be used"):
        run.start(broken, tmp_path / "run", caller())


def test_a_radius_that_is_missing_is_an_error() -> None:
    with pytest.raises(ConfigError, match="eps_train is 0"):
        config(plan=Plan(steps=3))
