"""`sb.train`: run directories from Python, Ctrl-C, bars, factories, and refusals in words of our own."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

import surebound as sb
from surebound.cli import build_app
from surebound.errors import ConfigError, InputError, RunError
from surebound.experiment.train import train
from surebound.train.observe import Observer, Progress
from surebound.zoo.layers import build, describe

PLAN = sb.Plan(steps=20, batch_size=20, eps_train="1/50", warmup=4, ramp=8, learning_rate=0.01, seed=1)


def task_data(count: int = 60) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(5))
    return x, (x.mean(dim=(1, 2, 3)) > 0.5).long()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(75, 2))


class Interrupting(Observer):
    """Sends Ctrl-C to this process at a step, or raises it itself."""

    def __init__(self, step: int, *, sends: bool) -> None:
        self.step, self.sends = step, sends

    def progressed(self, progress: Progress) -> None:
        if progress.step == self.step and self.sends:
            os.kill(os.getpid(), signal.SIGINT)
        elif progress.step == self.step:
            raise KeyboardInterrupt


def run_command(*words: object) -> Any:
    return CliRunner().invoke(build_app(), [str(word) for word in words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "whole"
    assert train(net(), task_data(), sb.training.IBP(), PLAN, held_out=task_data(12), out=path).finished
    return path


def final(path: Path) -> dict[str, Tensor]:
    return load_file(path / "final.safetensors")


def same(a: Path, b: Path) -> bool:
    left, right = final(a), final(b)
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_the_directory_is_one_of_ours(finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    assert results["images"] == 12 and results["verified_error"].keys() == {"1/50"}
    loaded, weights = sb.load(finished).state_dict(), final(finished)
    assert loaded.keys() == weights.keys() and all(torch.equal(loaded[k], weights[k]) for k in weights)
    shown = run_command("verify", finished, "--eps", "1/50", "--cascade", "fast", "--jobs", 1)
    assert shown.exit_code == 0 and "12" in shown.stdout
    assert run_command("report", finished).exit_code == 0
    assert "own" in (finished / "report.html").read_text()
    again = run_command("resume", finished)
    assert again.exit_code == 0 and "finished: held-out clean" in again.stdout


@pytest.mark.parametrize("sends", [True, False], ids=["signal", "raised"])
def test_ctrl_c_loses_nothing(finished: Path, tmp_path: Path, sends: bool) -> None:
    path, model = tmp_path / "run", net()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(
            model, task_data(), sb.training.IBP(), PLAN, held_out=task_data(12), out=path,
            observer=Interrupting(7, sends=sends),
        )  # fmt: skip
    assert signal.getsignal(signal.SIGINT) is before
    assert (path / "checkpoints").is_dir() and not (path / "final.safetensors").exists()
    sb.load(path)  # of an unfinished run, the last checkpoint
    stopped = run_command("resume", path)
    assert stopped.exit_code == 0, stopped.output
    assert same(finished, path), "resumed by a command: the same bits"


def test_the_same_call_goes_on(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    arguments: dict[str, Any] = {"held_out": task_data(12), "out": path}
    calls = iter(range(100))
    outcome = train(net(), task_data(), sb.training.IBP(), PLAN, stop=lambda: next(calls) >= 8, **arguments)
    assert not outcome.finished
    model = net()
    assert train(model, task_data(), sb.training.IBP(), PLAN, **arguments).finished
    assert same(finished, path)
    assert all(torch.equal(value, final(path)[name]) for name, value in model.state_dict().items())
    with pytest.raises(RunError, match=r"another plan \(then .*choose another out="):
        train(net(), task_data(), sb.training.IBP(), sb.Plan(steps=21, eps_train="1/50"), **arguments)
    with pytest.raises(RunError, match="the data differ"):
        train(net(), task_data(61), sb.training.IBP(), PLAN, **arguments)


def test_epochs_stretch_the_plan() -> None:
    outcome = train(net(), task_data(), sb.training.IBP(), PLAN, epochs=2)
    assert outcome.step == 6  # 60 inputs in batches of 20
    with pytest.raises(ConfigError, match="epochs=0; give a number above 0"):
        train(net(), task_data(), sb.training.IBP(), PLAN, epochs=0)
    with pytest.raises(ConfigError, match=r"a Plan counts in steps; .*sb.train\(..., epochs=3\)"):
        sb.Plan(epochs=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"a Plan has no 'warm_up'; did you mean 'warmup'\?"):
        sb.Plan(steps=3, warm_up=1)  # type: ignore[call-arg]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def cosine(optimiser: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 20)


class Rates(Observer):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def progressed(self, progress: Progress) -> None:
        self.seen.append(progress.rate)


def test_an_optimiser_and_a_scheduler_of_ones_own(tmp_path: Path) -> None:
    """They resume to the same bits from Python; a command says why it cannot."""
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    options: dict[str, Any] = {"optimiser": sgd, "scheduler": cosine}
    rates = Rates()
    assert train(net(), task_data(), sb.training.IBP(), PLAN, out=straight, observer=rates, **options).finished
    assert rates.seen[0] > rates.seen[10] > rates.seen[-1] >= 0
    calls = iter(range(100))
    train(net(), task_data(), sb.training.IBP(), PLAN, out=parts, stop=lambda: next(calls) >= 8, **options)
    refused = run_command("resume", parts)
    assert refused.exit_code == 2 and "begun in Python with its own optimiser and scheduler" in refused.stderr
    assert train(net(), task_data(), sb.training.IBP(), PLAN, out=parts, **options).finished
    assert same(straight, parts)


def test_the_plans_decays_apply_to_an_own_optimiser() -> None:
    rates = Rates()
    plan = sb.Plan(steps=4, batch_size=20, learning_rate=0.01, decay_steps=(2,), decay_factor=0.5)
    train(net(), task_data(), sb.training.Nominal(), plan, optimiser=sgd, observer=rates)
    assert rates.seen == pytest.approx([0.1, 0.1, 0.05, 0.05])


class Dictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(x)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((net, task_data, "ibp"), r"the method is the text 'ibp'; give sb.training.IBP\(\)"),
        ((net, task_data, "ibpp"), "the method is the text 'ibpp'; did you mean 'ibp'"),
        ((net, task_data, sb.training.IBP), r"the method is the class IBP; give an instance, sb.training.IBP\(\)"),
        ((net, task_data, 3), "the method is a int; give one of sb.training"),
        ((net, lambda: sb.LinfBall(task_data()[0], "1/50"), sb.training.IBP()), "data holds a region; training makes"),
        ((net, lambda: (sb.LinfBall(task_data()[0], "1/50"), task_data()[1]), sb.training.IBP()), "holds a region"),
        ((Dictionary, task_data, sb.training.IBP()), r"returns a dict with 'logits'; .* sb.choose\(net, 'logits'\)"),
        (
            (net, lambda: (torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)), sb.training.IBP()),
            "numbers of tokens or categories have no neighbours",
        ),
        ((lambda: 7, task_data, sb.training.IBP()), "the model is a int; give a torch.nn.Module"),
    ],
)
def test_refusals_are_ours(arguments: tuple[Any, Any, Any], message: str, tmp_path: Path) -> None:
    make, data, method = arguments
    with pytest.raises(InputError, match=message):
        train(make(), data(), method, PLAN, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_region_of_token_ids_is_advised_about() -> None:
    with pytest.raises(InputError, match="embedding"):
        sb.LinfBall(torch.zeros(1, 4, dtype=torch.int64), "1/10")
    with pytest.raises(InputError, match=r"images.float\(\) / 255 for byte images"):
        sb.LinfBall(torch.zeros(1, 4, dtype=torch.uint8), "1/10")


def test_refusals_of_factories_and_plans() -> None:
    with pytest.raises(ConfigError, match="optimiser= gave a NoneType"):
        train(net(), task_data(), sb.training.IBP(), PLAN, optimiser=lambda p: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match="scheduler= gave a ReduceLROnPlateau"):
        train(net(), task_data(), sb.training.IBP(), PLAN, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(InputError, match="the plan is a dict"):
        train(net(), task_data(), sb.training.IBP(), {"steps": 3})  # type: ignore[arg-type]


class Unnamed(nn.Module):
    """A class that needs an argument: it cannot be built again by a command."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def test_a_class_that_cannot_be_built_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "run"
    plan = sb.Plan(steps=2, batch_size=20)
    assert train(Unnamed(5), task_data(), sb.training.Nominal(), plan, out=path).finished
    with pytest.raises(RunError, match=r"the class Unnamed of .*--weights .*final.safetensors"):
        sb.load(path)
    assert run_command("report", path).exit_code == 0
    assert train(Unnamed(5), task_data(), sb.training.Nominal(), plan, out=path).finished


@pytest.mark.parametrize(
    "make",
    [
        sb.models.small,
        lambda: sb.models.small(mean=(0.5,), std=(0.2,)),
        lambda: nn.Sequential(nn.BatchNorm2d(1), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.LeakyReLU(0.2)),
        lambda: nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False)), nn.ELU(), nn.Linear(3, 2)),
    ],
)
def test_layers_are_written_and_built_again(make: Any) -> None:
    model = make()
    record = json.loads(json.dumps(describe(model)))
    assert set(record) == {"layers"}
    other = build(record)
    other.load_state_dict(model.state_dict())
    assert repr(other) == repr(model)


def test_an_importable_class_is_written_by_name() -> None:
    assert describe(Dictionary()) == {"factory": f"{Dictionary.__module__}:Dictionary"}
    assert describe(Unnamed(3)) == {"own": f"{Unnamed.__module__}:Unnamed"}


def test_a_notebook_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)

    def display(content: str, display_id: bool) -> Any:
        shown.append(content)
        return handle

    shell = SimpleNamespace(kernel=object())
    module = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    train(net(), task_data(), sb.training.IBP(), PLAN)
    assert len(shown) >= 2 and 'value="0" max="20"' in shown[0]
    assert 'value="20" max="20"' in shown[-1] and "ETA" in shown[-1]


def test_nobody_looks_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    train(net(), task_data(), sb.training.IBP(), PLAN)
    assert capsys.readouterr() == ("", "")
    train(net(), task_data(), sb.training.IBP(), PLAN, progress=True)
    assert "20/20 ETA" in capsys.readouterr().err


def test_a_failed_start_does_not_block_its_retry(tmp_path: Path) -> None:
    """Device, network and data are tried before a directory is made; what never trained is begun anew."""
    path = tmp_path / "run"
    wrong = run_command("train", "digits-ibp", "--device", "cuda:7", "--steps", 5, "--out", path)
    assert wrong.exit_code == 2 and not path.exists()
    config = run_command("show-config", "digits-ibp").stdout.replace('name = "digits"', 'name = "small"', 2)
    (tmp_path / "wrong.toml").write_text(config)
    unknown = run_command("train", tmp_path / "wrong.toml", "--out", path)
    assert unknown.exit_code == 2 and not path.exists()
    path.mkdir()
    (path / "config.toml").write_text(run_command("show-config", "digits-ibp").stdout)
    (path / "environment.json").write_text("{}")
    retried = run_command("train", "digits-ibp", "--steps", 5, "--threads", 1, "--out", path)
    assert retried.exit_code == 0, retried.output
    again = run_command("train", "digits-ibp", "--steps", 5, "--out", path)
    assert again.exit_code == 2 and "holds a run already" in again.stderr
