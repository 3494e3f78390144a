"""`surebound attack`, from the command line to the table."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner, Result

from surebound.attack import AttackProgress, AttackResult, attack, starts
from surebound.attack.methods import BY_NAME, PGD
from surebound.cli import attack as command
from surebound.cli import build_app
from surebound.cli.exits import EXIT_ERRORS
from surebound.region import LinfBall

NETS = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

class Odd(nn.Module):
    def forward(self, x):
        return torch.linalg.matrix_exp(x[:, 0])[:, 0]

class Quotient(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.over, self.under = nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, x):
        return self.over(x.flatten(1)) / self.under(x.flatten(1))
"""


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a name of its own in the working directory, with weights and 30 images beside it."""
    name = f"attacked_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(NETS, encoding="utf-8")
    save_file(network().state_dict(), tmp_path / "w.safetensors")
    images = torch.rand(30, 1, 2, 2)
    labels = network()(images).argmax(1)
    labels[:3] = (labels[:3] + 1) % 3
    save_file({"images": images, "labels": labels}, tmp_path / "data.safetensors")
    monkeypatch.chdir(tmp_path)
    return name


def run(*words: str) -> Result:
    return CliRunner().invoke(build_app(), ["attack", *words])


def given(name: str, *words: str) -> Result:
    return run(f"{name}:build", "--weights", "w.safetensors", "--data", "data.safetensors", *words)


def test_the_table_agrees_with_the_library(name):
    result = given(name, "--eps", "1/10", "--steps", "15", "--restarts", "2", "--seed", "4", "--format", "json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    arrays = load_file("data.safetensors")
    expected = attack(network(), LinfBall(arrays["images"], "1/10", clip=(0, 1)), arrays["labels"], PGD(15, 2), seed=4)
    assert row["examples"] == 30
    assert row["clean error"] == pytest.approx(0.1)
    assert row["error under attack"] == pytest.approx(float(expected.error))
    assert row["proved"] + row["undecided"] + int(expected.success.sum()) == 30
    assert row["searched"] == 27 - row["proved"]
    assert row["proved"] > 0


@pytest.mark.parametrize("kind", list(command.Name))
def test_every_attack_by_its_name(name, kind):
    result = given(name, "--eps", "0.05", "--attack", kind.value, "--steps", "2", "--first", "4", "--start", "corner")
    assert result.exit_code == 0, result.output
    assert kind.value in result.stdout


def test_the_names_are_those_of_the_library():
    assert {kind.value for kind in command.Name} == set(BY_NAME)
    assert {start.value for start in command.Start} == set(starts.STARTS)


def test_attack_proved_checks_the_bounds_and_finds_them_true(name):
    result = given(name, "--eps", "0.05", "--steps", "10", "--restarts", "2", "--attack-proved", "--format", "json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert row["searched"] == 27
    assert row["proved"] > 0


def test_a_wrong_proof_is_reported_loudly(name, monkeypatch):
    monkeypatch.setattr(
        command, "_proved", lambda model, region, labels, bar: torch.ones_like(labels, dtype=torch.bool)
    )
    result = given(name, "--eps", "0.3", "--steps", "10", "--attack-proved")
    assert result.exit_code == EXIT_ERRORS
    assert "proved robust and then broken" in result.stderr


def test_what_was_found_can_be_saved_and_read_back(name):
    result = given(name, "--eps", "0.1", "--steps", "10", "--save", "found.safetensors")
    assert result.exit_code == 0, result.output
    found, arrays = load_file("found.safetensors"), load_file("data.safetensors")
    assert bool(((found["images"] - arrays["images"]).abs() <= 0.1).all())
    wrong = network()(found["images"]).argmax(1) != arrays["labels"]
    assert torch.equal(wrong, found["success"])
    again = run(f"{name}:build", "--weights", "w.safetensors", "--data", "found.safetensors", "--eps", "0")
    assert again.exit_code == 0, again.output


def test_a_network_without_bounds_is_attacked_as_a_whole(name):
    result = run(f"{name}:Odd", "--data", "data.safetensors", "--eps", "0.1", "--steps", "2", "--format", "json")
    # Its outputs are (B, 2) but the labels go to 2: refused, after the bounds were found missing.
    assert "no bounds for this network, so nothing is proved and everything is attacked" in result.stderr
    assert result.exit_code == 2
    assert "labels must be in 0..1" in result.stderr


def test_a_network_whose_bounds_do_not_exist_is_attacked_as_a_whole(name):
    arguments = ("--data", "data.safetensors", "--eps", "0.2", "--steps", "5", "--format", "json")
    result = run(f"{name}:Quotient", *arguments)  # the divisor may be 0
    assert result.exit_code == 0, result.output
    assert "no bounds for this network, so nothing is proved and everything is attacked (" in result.stderr
    (row,) = json.loads(result.stdout)
    assert row["proved"] == 0
    assert row["searched"] == row["finished"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--eps", "8/0"], "--eps='8/0' is not a finite number"),
        (["--eps", "-1"], "negative"),
        (["--eps", "0.1", "--steps", "0"], "steps must be an integer of at least 1"),
        (["--eps", "0.1", "--save", "found.npz"], "ends in .safetensors"),
        (["--eps", "0.1", "--save", "nowhere/found.safetensors"], "make it first"),
    ],
)
def test_mistakes_are_explained(name, words, message):
    result = given(name, *words)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.filterwarnings("ignore::surebound.errors.UntrainedWarning")
def test_without_data_it_says_what_to_give(name):
    result = run(f"{name}:build", "--eps", "0.1")
    assert result.exit_code == 2
    assert "give --data" in result.stderr


def interrupting(at: int) -> Callable[..., AttackResult]:
    """The library's search, with Ctrl-C pressed ``at`` steps after its start."""

    def search(*args: Any, progress: Callable[[AttackProgress], None], **kwargs: Any) -> AttackResult:
        steps = itertools.count(1)

        def show(now: AttackProgress) -> None:
            progress(now)
            if next(steps) == at:
                signal.raise_signal(signal.SIGINT)

        return attack(*args, progress=show, **kwargs)

    return search


def test_stopping_keeps_what_was_found(name, monkeypatch):
    monkeypatch.setattr(sys.modules["surebound.attack"], "attack", interrupting(at=10))
    words = ("--eps", "0.4", "--steps", "50", "--restarts", "3")
    result = given(name, *words, "--save", "found.safetensors", "--format", "json")
    assert result.exit_code == 130, result.output
    (row,) = json.loads(result.stdout)
    found, arrays = load_file("found.safetensors"), load_file("data.safetensors")
    wrong = network()(found["images"]).argmax(1) != arrays["labels"]
    assert torch.equal(wrong, found["success"])
    assert bool(((found["images"] - arrays["images"]).abs() <= 0.4).all())
    broken = int(wrong.sum()) - 3  # three were wrong from the start
    assert 0 < broken == row["finished"] < row["searched"]
    assert int((~found["finished"]).sum()) == row["searched"] - row["finished"]
    assert (
        f"stopped, so this is partial: of {row['searched']} images to search, {broken} are finished and {broken} broken"
        in result.stderr
    )
    assert "found.safetensors holds what was found until then" in result.stderr


def test_stopping_without_a_file_still_shows_the_table(name, monkeypatch):
    monkeypatch.setattr(sys.modules["surebound.attack"], "attack", interrupting(at=1))
    result = given(name, "--eps", "0.1")
    assert result.exit_code == 130, result.output
    assert "error under attack" in result.stdout
    assert "holds" not in result.stderr


@pytest.fixture
def plain_interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, whatever the tests before have left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_signal_stops_at_once(name, monkeypatch, plain_interrupts):
    def stopped(*args: object, progress: Callable[[AttackProgress], None], **kwargs: object) -> None:
        progress(AttackProgress(done=25, total=100, examples=7, broken=2))
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sys.modules["surebound.attack"], "attack", stopped)
    result = given(name, "--eps", "0.1")
    assert result.exit_code == 130
    assert "stopped at 25%, 2 of 7 broken; nothing was kept" in result.stderr
