"""`surebound doctor`: supported or not and why, unstable ReLUs counted by hand, costs, and advice."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import surebound as sb
from surebound.cli import build_app
from surebound.experiment.doctor import _Countdown, _stabilities, diagnose
from surebound.experiment.target import Target
from surebound.graph import program_of


class Odd(nn.Module):
    """Inverts a matrix, for which there is no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.linalg.inv(x.view(-1, 2, 2)).flatten(1))  # type: ignore[no-any-return]


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    x = torch.rand(10, 4, generator=torch.Generator().manual_seed(2))
    np.savez(tmp_path / "data.npz", images=x.numpy(), labels=small()(x).argmax(1).numpy())
    return tmp_path / "data.npz"


def run(*words: object) -> Any:
    return CliRunner().invoke(build_app(), [str(word) for word in words])


def test_unstable_relus_are_counted(data: Path) -> None:
    """Against interval arithmetic by hand; a radius of nearly 0 leaves none, CROWN never more than intervals."""
    found = diagnose(Target("net", small(), str(data)), [Fraction(1, 10**6), Fraction(1, 10)], images=4)
    assert found.support.supported and found.parameters == 60 + 104 + 27 and found.correct == 4
    tiny, wide = found.stability
    assert tiny.by_intervals == 0 and tiny.units == wide.units == 20
    net, count = small(), 0
    x = torch.from_numpy(np.load(data)["images"][:4])
    low, high = (x - 0.1).clamp(0, 1), (x + 0.1).clamp(0, 1)
    for layer in (net[0], net[2]):
        centre, radius = layer((low + high) / 2), (high - low) / 2 @ layer.weight.abs().T
        count += int(((centre - radius < 0) & (centre + radius > 0)).sum())
        low, high = (centre - radius).relu(), (centre + radius).relu()
    assert wide.by_intervals == count / 4
    assert wide.by_crown is not None and wide.by_crown <= wide.units


def test_both_counts_of_unstable_relus_are_about_the_same_images() -> None:
    """Before the first ReLU linear bounds are interval bounds; the images differ in how many are unstable."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3))
    x = torch.rand(4, 4) * torch.tensor([0.01, 0.2, 0.6, 1.0])[:, None]
    box = sb.interval_bounds(net[0], sb.LinfBall(x, "1/10", clip=(0, 1)))
    unstable = ((box.lower < 0) & (box.upper > 0)).sum(1)
    assert int(unstable[0]) != int(unstable.sum()) / 4
    program = program_of(net, x[:1])
    for seconds, images in ((20.0, 4), (0.0, 1)):
        (found,) = _stabilities(program, x, [Fraction(1, 10)], (0, 1), _Countdown(seconds))
        assert (found.images, found.by_intervals) == (images, int(unstable[:images].sum()) / images)
        assert found.by_crown in (None, found.by_intervals)


def test_costs_and_advice(data: Path) -> None:
    found = diagnose(Target("net", small(), str(data)), [Fraction(1, 10**4)], images=6)
    assert [cost.name for cost in found.costs] == ["interval", "zonotope", "crown-ibp", "crown", "alpha-crown"]
    assert all(cost.seconds is not None and cost.seconds >= 0 and cost.proved is not None for cost in found.costs)
    assert found.costs[0].proved == found.correct and "--cascade fast" in found.advice
    hard = diagnose(Target("net", small(), str(data)), [Fraction(2, 5)], images=6)
    assert "branch and bound" in hard.advice or "proves" in hard.advice
    late = diagnose(Target("net", small(), str(data)), [Fraction(1, 10)], seconds=0)
    assert all(cost.remark == "not tried: no time was left" for cost in late.costs)


def test_the_command_tells_and_writes_json(data: Path) -> None:
    shown = run("doctor", f"{__name__}:small", "--data", data, "--eps", "1/100", "--first", 4)
    assert shown.exit_code == 0, shown.output
    for words in ("191 parameters", "aten.relu.default", "unstable ReLUs per image", "alpha-crown", "proved of 4"):
        assert words in shown.stdout
    found = json.loads(run("doctor", f"{__name__}:small", "--data", data, "--format", "json").stdout)
    assert found["supported"] and found["unstable"][0]["of"] == 20 and len(found["methods"]) == 5


@pytest.mark.filterwarnings("ignore::surebound.errors.UntrainedWarning")
def test_what_is_not_supported_has_a_place_and_a_remedy(data: Path) -> None:
    shown = run("doctor", f"{__name__}:Odd", "--data", data)
    assert shown.exit_code == 1
    assert "aten.linalg_inv" in shown.stdout and "test_doctor.py" in shown.stdout and "->" in shown.stdout
    assert "only attacks are possible" in shown.stdout


def test_an_onnx_file_needs_no_data(tmp_path: Path) -> None:
    sb.vnnlib.write_network(small(), torch.zeros(1, 4), tmp_path / "net.onnx")
    shown = run("doctor", tmp_path / "net.onnx", "--eps", "1/1000")
    assert shown.exit_code == 0 and "made-up inputs (no --data)" in shown.stdout
    refused = run("doctor", f"{__name__}:small")
    assert refused.exit_code == 2 and "give --data" in refused.stderr
