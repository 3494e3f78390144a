"""Every threat of docs/threats.md at every command that takes one: it works, or says clearly why it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import surebound as sb
from surebound.cli import build_app
from surebound.verify import radius as verify_radius
from surebound.verify import run as verify_run
from surebound.verify.pool import Inline
from tests.cli.digits_net import build

NET = "tests.cli.digits_net:build"

#: Each kind, at a size that leaves something to prove, and two combinations.
THREATS = (
    "linf:1/200", "l2:1/50", "l1:1/50", "patch:1", "l0:1", "l0:2", "brightness:1/100", "contrast:1/50", "gamma:1/50",
    "hue:1deg", "blur:1/50", "rotation:1/10deg", "translation:1/100", "scaling:1/200",
    "rotation:1/10deg+brightness:1/200", "linf:1/1000+blur:1/100",
)  # fmt: skip

IMAGES = 2

#: Two pixels of 64 may do anything.
PROVED_BY_NOTHING = ("l0:2",)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that the network reads rightly."""
    path = tmp_path_factory.mktemp("read") / "read.safetensors"
    images = sb.data.load("digits").test.batch(torch.arange(IMAGES))[0]
    save_file({"images": images, "labels": build()(images).argmax(1)}, path)
    return path


def run(*arguments: str) -> str:
    found = CliRunner().invoke(build_app(), [*arguments, "--quiet"] if arguments[0] != "report" else list(arguments))
    assert found.exception is None or isinstance(found.exception, SystemExit), (arguments, found.exception)
    assert found.exit_code == 0, (arguments, found.output)
    return found.stdout


@pytest.mark.parametrize("threat", THREATS)
def test_commands_agree_on_a_threat(threat: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (verify_run, verify_radius):  # worker processes would load torch anew
        monkeypatch.setattr(module, "executor_for", lambda work, jobs, cluster: Inline(work))
    asked = (NET, "--data", str(data), "--threat", threat)
    search = ("--cascade", "fast", "--timeout", "5", "--jobs", "1")
    if threat.startswith("hue"):  # digits have no colours
        for command in ("verify", "bounds", "attack", "radius"):
            found = CliRunner().invoke(build_app(), [command, *asked, "--quiet"])
            assert found.exit_code == 2 and "hue is of images with 3 channels; these have 1" in found.output
        return
    run("verify", *asked, *search, "--out", "o")
    listed = json.loads(CliRunner().invoke(build_app(), ["results", "o", "--format", "json"]).stdout)
    status = [each["status"] for each in listed]
    bounded = json.loads(run("bounds", *asked, "--method", "crown", "--format", "json"))
    run("attack", *asked, "--steps", "2", "--restarts", "1", "--save", "w.safetensors")
    broken = load_file("w.safetensors")["success"]
    radii = json.loads(run("radius", *asked, *search, "--format", "json"))
    assert [each["index"] for each in listed] == [each["image"] for each in bounded] == list(range(IMAGES))
    for i in range(IMAGES):
        proved = {status[i] == "robust", bounded[i]["proved"], radii[i]["proved_threat"] == canonical(threat)}
        refuted = {status[i] == "falsified", bool(broken[i]), radii[i]["broken"] is not None}
        assert not (True in proved and True in refuted), (i, status, bounded, broken, radii)
        assert status[i] in ("robust", "falsified", "unknown", "timeout")
    assert threat in PROVED_BY_NOTHING or "robust" in status, (status, bounded)
    run("report", "o")
    assert canonical(threat) in Path("o/report.html").read_text()


def canonical(threat: str) -> str:
    """Return a threat's name as reports have it: without units."""
    return threat.replace("deg", "")
