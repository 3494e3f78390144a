"""Commands take threats by name, and say of images what they found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import surebound as sb
from surebound.cli import build_app
from surebound.report import provenance
from surebound.report.source import read_run
from tests.cli.digits_net import build


def test_commands_take_threats(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = lambda *args: CliRunner().invoke(build_app(), [*args, "--first", "2", "--quiet"])  # noqa: E731
    net = "tests.cli.digits_net:build"
    for threat in ("translation:1/10", "l2:1/100"):
        found = run("bounds", net, "--data", "digits", "--threat", threat, "--method", "crown")
        assert found.exit_code == 0 and f"proved robust against {threat}" in found.output, found.output
    found = run(
        "attack", net, "--data", "digits", "--threat", "rotation:5deg", "--steps", "3", "--save", "w.safetensors"
    )
    assert found.exit_code == 0 and "rotation:5" in found.output, found.output
    from safetensors.torch import load_file

    assert load_file("w.safetensors")["images"].shape == (2, 1, 8, 8)
    found = run(
        "verify", net, "--data", "digits", "--threat", "contrast:1/10", "--cascade", "fast", "--jobs", "1", "--out", "o"
    )
    assert found.exit_code == 0 and "1/10" in found.output, found.output
    kept = read_run(tmp_path / "o")
    assert kept.name.endswith(", contrast:1/10") and "stay under contrast:1/10?" in str(provenance.asked(kept)["asked"])
    found = run("verify", net, "--data", "digits", "--threat", "contrast:1/10", "--certificates", "c")
    assert "leave them out with --threat" in found.output
    for given in ((), ("--eps", "1/9", "--threat", "l2:1")):
        assert "one of the two" in (run("bounds", net, "--data", "digits", *given).output)
    assert "rotation:5deg" in (run("attack", net, "--data", "digits", "--threat", "tilt:3").output)


def test_commands_take_patches_and_radius_takes_threats(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = lambda *args: CliRunner().invoke(build_app(), [*args, "--data", "digits", "--quiet"])  # noqa: E731
    net = "tests.cli.digits_net:build"
    found = run("bounds", net, "--threat", "patch:7", "--first", "2")
    assert found.exit_code == 0 and "2 images" in found.output and "against patch:7" in found.output, found.output
    found = run("attack", net, "--threat", "patch:7", "--first", "2", "--steps", "2", "--restarts", "1",
                "--save", "w.safetensors")  # fmt: skip
    assert found.exit_code == 0, found.output
    from safetensors.torch import load_file

    assert load_file("w.safetensors")["images"].shape == (2, 1, 8, 8)
    found = run("verify", net, "--threat", "patch:7", "--first", "2", "--cascade", "fast", "--jobs", "1", "--out", "o")
    assert found.exit_code == 0 and " 2  " in found.output, found.output
    listed = CliRunner().invoke(build_app(), ["results", "o", "--format", "json"])
    records = json.loads(listed.stdout)
    assert [record["index"] for record in records] == [0, 1], "images, not their four places"
    images = sb.data.load("digits").test.batch(torch.arange(2))[0]
    assert [record["prediction"] for record in records] == build()(images).argmax(1).tolist()
    states = {record["status"] for record in records}
    filtered = CliRunner().invoke(build_app(), ["results", "o", "--format", "json", "--status", states.pop()])
    assert json.loads(filtered.stdout) and all(record["index"] < 2 for record in json.loads(filtered.stdout))
    assert [record.index for record in read_run(Path("o")).records] == [0, 1]
    assert "--most is for l-infinity balls" in run("radius", net, "--threat", "l2:1", "--most", "1").output


def test_radius_counts_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are whole, named as --threat takes them; what is proved of a size is proved by bounds at that size."""
    monkeypatch.chdir(tmp_path)
    x = sb.data.load("digits").test.batch(torch.arange(3))[0]
    labels = build()(x).argmax(1)
    save_file({"images": x, "labels": labels}, "read.safetensors")
    for kind, region in (("patch", sb.Patch), ("l0", sb.L0Ball)):
        words = ["radius", "tests.cli.digits_net:build", "--data", "read.safetensors", "--threat", f"{kind}:2"]
        found = CliRunner().invoke(build_app(), [*words, "--jobs", "1", "--quiet", "--format", "json"])
        assert found.exit_code == 0, found.output
        for each in json.loads(found.stdout):
            at, size = slice(each["image"], each["image"] + 1), each["proved_exactly"]
            assert size in ("0", "1", "2")
            assert each["proved_threat"] == (f"{kind}:{size}" if size in ("1", "2") else None)
            if size in ("1", "2"):
                upper = sb.worst_margins(build(), region(x[at], int(size)), labels[at], method="alpha-crown")
                assert bool((upper <= 0).all())
            assert each["broken_exactly"] in (None, "0", "1", "2")
        wrong = CliRunner().invoke(build_app(), [*words, "--step", "1/2"])
        assert wrong.exit_code == 2 and "is no number of pixels" in " ".join(wrong.output.split())
