"""Pictures of one image: what is drawn is what is true of the network, and files appear in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner, Result

import surebound as sb
from surebound.cli import build_app
from surebound.report.figure import Figure
from surebound.report.pictures import filters, output_ranges, propagation


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))


def text(figure: Figure | None) -> str:
    assert figure is not None
    return figure.render("svg").decode()


def test_signs_are_counted_by_layer() -> None:
    region = sb.LinfBall(torch.full((1, 1, 4, 4), 0.5), "1/10", clip=(0, 1))
    box = sb.interval_bounds(net()[:2], region)
    on, off = int((box.lower >= 0).sum()), int((box.upper <= 0).sum())
    drawn = text(propagation(net(), region))
    assert f"layer 1: {on} always on, {off} always off, {12 - on - off} of either sign" in drawn
    assert "layer 2: " in drawn and "layer 3: " not in drawn


def test_weights_are_laid_out_as_images() -> None:
    assert filters(net(), (1, 4, 4)) is not None
    assert filters(net(), (2, 3, 3)) is None, "rows of 16 are no images of 18 pixels"
    assert filters(nn.Sequential(nn.Conv2d(3, 5, 2)), (3, 4, 4)) is not None
    assert filters(nn.Sequential(nn.ReLU()), (3, 4, 4)) is None


def test_ranges_name_their_methods() -> None:
    zero, one = torch.zeros(3), torch.ones(3)
    drawn = text(output_ranges(1, zero, {"interval": (-one, one), "crown": (-one, zero)}, "1/10"))
    assert "interval" in drawn and "crown" in drawn and "value at the image" in drawn


def test_the_command_writes_every_format(run_dir: Path, tmp_path: Path, surebound: Callable[..., Result]) -> None:
    told = surebound("picture", run_dir, "--eps", "1/5", "--index", 8, "--out", tmp_path).stdout
    for name in ("outputs", "propagation", "filters", "counterexample"):
        assert name in told
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF") and (tmp_path / f"{name}.svg").is_file()
    with Image.open(tmp_path / "outputs.png") as image:
        assert image.width == int(6.2 * 192), "two pixels for each of a page"
    surebound("report", run_dir, "--out", tmp_path / "page.html", "--figures", tmp_path / "figures")
    assert (tmp_path / "figures" / "counterexamples-digits-ibp.pdf").is_file()
    wrong = CliRunner().invoke(build_app(), ["picture", str(run_dir), "--eps", "1/10", "--index", "999"])
    assert wrong.exit_code == 2 and "there are 355 images" in wrong.stderr
