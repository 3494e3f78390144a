"""The quickstart runs, and what it claims is so."""

from __future__ import annotations

from pathlib import Path

import torch
from typer.testing import CliRunner

from surebound import data
from surebound.cli import build_app
from surebound.experiment import quickstart


def test_command_writes_the_picture(tmp_path: Path) -> None:
    result = CliRunner().invoke(build_app(), ["quickstart", "--out", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "new" / "quickstart.png").read_bytes().startswith(b"\x89PNG")
    assert "proved robust, eps 1/50" in result.stdout


def test_the_curves_tell_the_truth() -> None:
    eps = quickstart.EPSILONS[:5]
    result = quickstart.run(eps, shown=eps[-1])
    for curve in result.curves:
        assert curve.attacked[0] == curve.proved[0] > 0.9, "at radius 0 both are the accuracy"
        assert all(p <= a for p, a in zip(curve.proved, curve.attacked, strict=True))
        assert list(curve.proved) == sorted(curve.proved, reverse=True)
    linear, features = result.curves
    assert linear.attacked == linear.proved, (
        "elision makes a linear network's bound exact, and the attack too"
    )
    assert features.proved[0] > linear.proved[0]
    assert features.proved[-1] < 0.05 < 0.9 < features.attacked[-1]


def test_the_ranges_contain_random_points() -> None:
    result = quickstart.run(quickstart.EPSILONS[:1])
    split = data.load("digits").test
    image, _ = split.batch(torch.tensor([0]))
    for build, example in zip(
        (quickstart.linear_network, quickstart.feature_network), result.examples, strict=True
    ):
        network = build(data.load("digits").train)
        noise = torch.rand(200, *image.shape[1:]) * 2 - 1
        outputs = network((image + float(example.eps) * noise).clamp(0, 1))
        assert (outputs >= example.lower).all()
        assert (outputs <= example.upper).all()
