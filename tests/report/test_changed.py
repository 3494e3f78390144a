"""Reports about changes of images: the pictures are what the network saw, an image each, not parameters of a change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

import surebound as sb
from surebound.cli import build_app
from surebound.report.build import make_report
from surebound.report.gallery import gallery
from surebound.report.headline import headline
from surebound.report.source import read_run
from tests.cli.digits_net import build

NET = "tests.cli.digits_net:build"


def verified(threat: str, folder: Path) -> tuple[Path, Tensor, Tensor]:
    """Verify four digits, each labelled as it is read; return the store, the images and the labels."""
    x = sb.data.load("digits").test.batch(torch.arange(4))[0]
    labels = build()(x).argmax(1)
    save_file({"images": x, "labels": labels}, str(folder / "images.safetensors"))
    words = ["verify", NET, "--data", str(folder / "images.safetensors"), "--threat", threat, "--cascade", "fast"]
    found = CliRunner().invoke(build_app(), [*words, "--jobs", "1", "--quiet", "--out", str(folder / "o")])
    assert found.exit_code == 0, found.output
    return folder / "o", x, labels


@pytest.mark.parametrize("threat", ["patch:3", "contrast:1", "l0:6", "linf:1/5+brightness:1/4"])
def test_pictures_are_what_the_network_saw(threat: str, tmp_path: Path) -> None:
    place, x, labels = verified(threat, tmp_path)
    run, net = read_run(place), build()
    assert [record.index for record in run.records] == list(range(4)), "a record for each image"
    shown = headline([run]).plain.replace("\xa0", " ")
    assert re.fullmatch(rf"[\d.]+ % of 4 images proved robust under {re.escape(run.threat)}", shown)
    broken = [r for r in run.records if r.verdict.status is sb.Status.FALSIFIED and r.verdict.stage != "clean"]
    found = gallery(run)
    assert len(found.falsified) == len(broken) > 0
    for picture in found.falsified:
        index = int(re.search(r"image (\d+), under ", picture.detail)[1])  # type: ignore[index]
        assert picture.witness is not None and picture.original is not None
        assert torch.equal(picture.original, x[index])
        assert int(net(picture.witness[None]).argmax(1)) != int(labels[index]), "the network misreads the picture"
        moved = (picture.witness != x[index])[0]
        if threat == "l0:6":
            assert int(moved.sum()) <= 6
        if threat == "patch:3":
            assert bool((torch.tensor([line[-1] - line[0] for line in moved.nonzero().T.sort().values]) < 3).all())
        assert picture.eps > 0
    html = make_report([place]).html
    assert f"under {run.threat}" in html


def test_other_data_have_no_pictures(tmp_path: Path) -> None:
    place, x, labels = verified("contrast:1", tmp_path)
    save_file({"images": 1 - x, "labels": labels}, str(tmp_path / "images.safetensors"))
    found = gallery(read_run(place))
    assert not found.falsified and "not those that were verified" in found.note
