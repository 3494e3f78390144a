"""`surebound bounds` on a saved model, checked by evaluating corners of the ball by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner, Result

from surebound.bounds.margins import METHODS
from surebound.cli import build_app
from surebound.cli.bounds import Arithmetic, MethodName, margin_rows
from surebound.errors import InputError, RadiusWarning
from surebound.experiment.arrays import read_arrays
from surebound.numerics import Soundness

runner = CliRunner()

pytestmark = pytest.mark.filterwarnings("ignore::surebound.errors.UntrainedWarning")

NETS = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = build()

    def forward(self, x):
        return self.inside(x.view(2, 1, 2, 2))

def one_output():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 1))

def fails():
    raise KeyError("no such width")

def needs(width):
    return nn.Linear(4, width)

def wrong():
    return "a network"

instance = build()
number = 7
"""


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with networks (in a module of a name of its own), weights and images."""
    name = f"nets_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(NETS, encoding="utf-8")
    (tmp_path / "name").write_text(name, encoding="utf-8")
    save_file(network().state_dict(), tmp_path / "w.safetensors")
    images = torch.rand(5, 1, 2, 2)
    labels = network()(images).argmax(1)
    labels[4] = (labels[4] + 1) % 3  # one image that is misclassified
    save_file({"images": images, "labels": labels}, tmp_path / "data.safetensors")
    np.savez(tmp_path / "data.npz", images=images.numpy(), labels=labels.numpy())
    (tmp_path / "w.npz").write_bytes(b"no weights, no images")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder: Path, factory: str, *arguments: str) -> Result:
    name = (folder / "name").read_text(encoding="utf-8")
    return runner.invoke(build_app(), ["bounds", f"{name}:{factory}", *arguments])


def rows(result: Result) -> list[dict[str, float]]:
    assert result.exit_code == 0, result.output
    found: list[dict[str, float]] = json.loads(result.stdout)
    return found


COMMON = ("--weights", "w.safetensors", "--data", "data.safetensors", "--format", "json")


def corners(eps: float) -> torch.Tensor:
    """Every corner of every ball: (16, 5, 1, 2, 2)."""
    with np.load("data.npz") as archive:
        images = torch.from_numpy(archive["images"])
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=4))).reshape(16, 1, 1, 2, 2)
    return (images + eps * signs).clamp(0, 1)


@pytest.mark.parametrize("method", MethodName)
def test_margins_hold_at_every_corner(folder: Path, method: MethodName) -> None:
    found = rows(run(folder, "build", *COMMON, "--eps", "1/20", "--method", method.value))
    assert [row["image"] for row in found] == [0, 1, 2, 3, 4]
    with torch.no_grad():
        outputs = network()(corners(0.05).flatten(0, 1)).reshape(16, 5, 3)
    for i, row in enumerate(found):
        margins = outputs[:, i] - outputs[:, i, row["label"] : row["label"] + 1]  # type: ignore[misc]
        margins[:, int(row["label"])] = -float("inf")
        assert row["worst margin"] >= margins.max().item()
        assert row["proved"] == (row["worst margin"] <= 0 and row["prediction"] == row["label"])
    assert found[4]["proved"] is False


def test_the_names_are_the_engines() -> None:
    assert [method.value for method in MethodName] == list(METHODS)
    assert [arithmetic.value for arithmetic in Arithmetic] == [mode.value for mode in Soundness]


def test_radius_zero_proves_what_is_classified_correctly(folder: Path) -> None:
    found = rows(run(folder, "build", *COMMON, "--eps", "0"))
    assert [row["proved"] for row in found] == [True, True, True, True, False]


@pytest.mark.parametrize("method", [MethodName.INTERVAL, MethodName.CROWN])
def test_outputs_hold_at_every_corner(folder: Path, method: MethodName) -> None:
    found = rows(
        run(
            folder,
            "build",
            *COMMON,
            "--eps",
            "0.05",
            "--show",
            "outputs",
            "--index",
            "2",
            "--method",
            method.value,
        )
    )
    assert [row["output"] for row in found] == [0, 1, 2]
    with torch.no_grad():
        outputs = network()(corners(0.05)[:, 2])
    for k, row in enumerate(found):
        assert row["lower"] <= outputs[:, k].min().item() <= row["value"] <= outputs[:, k].max().item() <= row["upper"]


def test_batches_change_nothing_but_the_pace(folder: Path) -> None:
    whole = rows(run(folder, "build", *COMMON, "--eps", "0.1"))
    parts = rows(run(folder, "build", *COMMON, "--eps", "0.1", "--batch-size", "2"))
    assert [row["image"] for row in parts] == [row["image"] for row in whole]
    margins = [torch.tensor([row["worst margin"] for row in found]) for found in (whole, parts)]
    torch.testing.assert_close(*margins)


def test_a_network_that_fixes_its_batch_size_gets_it(folder: Path) -> None:
    common = ("--data", "data.safetensors", "--format", "json", "--eps", "0.1", "--first", "4")
    for method in ("interval", "crown"):
        found = rows(run(folder, "Fixed", *common, "--batch-size", "2", "--method", method))
        assert [row["image"] for row in found] == [0, 1, 2, 3]


def test_stopping_shows_what_was_bounded_until_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows(run(folder, "build", *COMMON, "--eps", "0.1"))
    calls = iter([True, False])

    def stopping(*args: Any) -> Any:
        if not next(calls):
            raise KeyboardInterrupt
        return margin_rows(*args)

    monkeypatch.setattr("surebound.cli.bounds.margin_rows", stopping)
    result = run(folder, "build", *COMMON, "--eps", "0.1")  # the batch size is 100: one image is kept nevertheless
    assert result.exit_code == 130
    assert json.loads(result.stdout) == whole[:1]
    assert "stopped at 20%; the table has the first 1 of 5 images" in result.stderr


def test_npz_and_an_instance_work_too(folder: Path) -> None:
    assert (
        len(
            rows(
                run(
                    folder,
                    "instance",
                    "--data",
                    "data.npz",
                    "--format",
                    "json",
                    "--eps",
                    "0.1",
                    "--first",
                    "2",
                )
            )
        )
        == 2
    )


def test_the_table_ends_in_a_sentence(folder: Path) -> None:
    arguments = ("--weights", "w.safetensors", "--data", "data.npz", "--eps", "0")
    result = run(folder, "build", *arguments)
    assert "5 images, 4 classified correctly, 4 proved robust at eps = 0 for every float32 execution" in result.stdout
    assert "proves nothing" in run(folder, "build", *arguments, "--soundness", "none").stdout


def test_embedded_digits_need_no_file() -> None:
    arguments = ["--data", "digits", "--eps", "1/255", "--first", "3", "--format", "csv"]
    result = runner.invoke(build_app(), ["bounds", "tests.cli.digits_net:build", *arguments])
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 4


@pytest.mark.parametrize(
    ("factory", "arguments", "message"),
    [
        ("build", ["--eps", "8/0"], "eps='8/0' is not a finite number"),
        ("build", ["--eps=-0.1"], "eps='-0.1' is negative"),
        ("build", ["--eps", "0.1", "--weights", "nowhere.safetensors"], "do not exist"),
        ("build", ["--eps", "0.1", "--weights", "data.npz"], "no readable safetensors file"),
        ("one_output", ["--eps", "0.1", "--weights", "w.safetensors"], "do not fit the network"),
        ("build", ["--eps", "0.1", "--index", "9"], "there are 5 images, so indices run from 0 to 4"),
        ("build", ["--eps", "0.1", "--index", "1", "--first", "2"], "use one of them"),
        ("build", ["--eps", "0.1", "--first", "0"], "give 1 or more"),
        ("build", ["--eps", "0.1", "--data", "none.npz"], "does not exist"),
        ("build", ["--eps", "0.1", "--data", "w.safetensors"], "needs the arrays 'images'"),
        ("build", ["--eps", "0.1", "--data", "digitz"], "digits"),
        ("needs", ["--eps", "0.1"], "needs the argument\\(s\\) width"),
        ("wrong", ["--eps", "0.1"], "gives a str; it must give a torch.nn.Module"),
        ("number", ["--eps", "0.1"], "gives a int; it must give"),
        ("missing", ["--eps", "0.1"], "has no 'missing'"),
        ("fails", ["--eps", "0.1"], "fails' raised KeyError: 'no such width'; 'surebound --debug"),
        ("build", ["--eps", "0.1", "--data", "w.npz"], "cannot be read as arrays.*numpy.savez"),
        ("build", ["--eps", "0.1", "--weights", "w.npz"], "save_file\\(model.state_dict"),
        ("build", ["--eps", "1e400"], "eps='1e400' is too large"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, factory: str, arguments: list[str], message: str) -> None:
    given = arguments if "--data" in arguments else [*arguments, "--data", "data.npz"]
    result = run(folder, factory, *given)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("surebound: ")
    with pytest.raises(ValueError, match=message):
        raise ValueError(result.stderr)


def test_a_module_that_does_not_exist() -> None:
    result = runner.invoke(build_app(), ["bounds", "no.such.module:build", "--eps", "0.1"])
    assert result.exit_code == 2
    assert "cannot import 'no.such.module'" in result.stderr


def test_bytes_and_float64_images_are_read_as_float32(folder: Path) -> None:
    pixels, labels = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2) * 36, np.zeros(2)
    found = []
    for name, images in (("bytes", pixels), ("wide", pixels / 255), ("plain", np.float32(pixels / 255))):
        np.savez(f"{name}.npz", images=images, labels=labels)
        found.append(rows(run(folder, "build", "--data", f"{name}.npz", *COMMON[:2], *COMMON[4:], "--eps", "0.1")))
    assert found[0] == found[1] == found[2]


Array = np.typing.NDArray[Any]
IMAGES, LABELS = np.full((2, 1, 2, 2), 0.5, np.float32), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES, np.array([0.7, 1]), "labels of own.npz are float64 and not all whole numbers"),
        (IMAGES, np.array([0, np.nan]), "not all whole numbers"),
        (IMAGES.astype(np.int32), LABELS, "images of own.npz are int32; store them as float32"),
        (IMAGES[:0], LABELS[:0], r"holds no images: their shape is \(0, 1, 2, 2\)"),
        (IMAGES * 4 - 3, LABELS, r"values in \[-1, -1\]; they must be in \[0, 1\]"),
    ],
)
def test_arrays_that_cannot_be_used(images: Array, labels: Array, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", images=images, labels=labels)
    with pytest.raises(InputError, match=message.replace("own.npz", ".*own.npz")):
        read_arrays(tmp_path / "own.npz")


@pytest.mark.parametrize("command", ["bounds", "attack", "evaluate"])
def test_arrays_that_do_not_fit_the_network(folder: Path, command: str) -> None:
    name = (folder / "name").read_text(encoding="utf-8")
    for images, labels, message in (
        (IMAGES, LABELS + 3, "labels lie in [3, 3] but the network has 3 outputs"),
        (IMAGES[:, :, :1], LABELS, "does not take inputs of shape (1, 1, 2)"),
    ):
        np.savez("own.npz", images=images, labels=labels)
        result = runner.invoke(build_app(), [command, f"{name}:build", "--data", "own.npz", "--eps", "0.1"])
        assert result.exit_code == 2, result.output
        assert message in result.stderr


def test_the_range_of_images_can_be_given(folder: Path) -> None:
    np.savez("own.npz", images=IMAGES * 4 - 3, labels=LABELS)
    found = run(folder, "build", "--data", "own.npz", "--eps", "0.1", "--clip", "-1", "1", "--format", "json")
    assert len(rows(found)) == 2


def test_pickled_arrays_are_never_loaded(folder: Path) -> None:
    np.savez("evil.npz", images=np.array([print], dtype=object), labels=np.zeros(1, np.int64))
    result = run(folder, "build", "--data", "evil.npz", "--eps", "0.1")
    assert result.exit_code == 2
    assert "cannot be read as arrays" in result.stderr and "allow_pickle" not in result.stderr


def test_how_many_pixels_hold_anything_is_no_radius_to_be_warned_of() -> None:
    """Warnings are errors here: 2 pixels were taken for a radius of 2."""
    given = ["tests.cli.digits_net:build", "--data", "digits", "--first", "1"]
    found = runner.invoke(build_app(), ["bounds", *given, "--threat", "l0:2"])
    assert found.exit_code == 0, found.output + str(found.exception)
    with pytest.warns(RadiusWarning, match="was 2/255 meant"):
        runner.invoke(build_app(), ["bounds", *given, "--eps", "2"])
