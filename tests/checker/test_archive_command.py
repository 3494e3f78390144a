"""`surebound archive`: networks are proved, every certificate is checked, and only then they are packed."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from surebound.certificates.archive import entries
from surebound.checker import check
from surebound.cli import build_app
from surebound.cli.archive import _stem
from tests.cli.digits_net import build

NET = "tests.cli.digits_net:build"


def asked(folder: Path, *more: str) -> Result:
    """The first digits of an untrained network, one radius that proves most of what it gets right."""
    save_file(build().state_dict(), folder / "w.safetensors")
    common = ("--weights", str(folder / "w.safetensors"), "--data", "digits", "--first", "12", "--jobs", "1")
    return CliRunner().invoke(
        build_app(), ["archive", NET, *common, "--out", str(folder / "archives"), "--format", "json", *more]
    )


def test_proved_checked_packed_and_gone_on_with(tmp_path: Path) -> None:
    done = asked(tmp_path, "--eps", "1/1000,1/50")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [row["archive"] for row in rows] == [f"{NET.replace(':', '-')}-{eps}.zip" for eps in ("1-1000", "1-50")]
    for row in rows:
        file = tmp_path / "archives" / row["archive"]
        assert hashlib.sha256(file.read_bytes()).hexdigest() == row["sha256"]
        assert row["images"] == 12 == row["proved"] + row["broken"] + row["open"]
        assert row["certificates"] + row["without"] == row["proved"] + row["broken"] and row["certificates"] > 0
        for entry in entries(file):
            check(*entry.read())
    assert rows[0]["proved"] >= rows[1]["proved"]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.cert")}
    assert json.loads(asked(tmp_path, "--eps", "1/1000,1/50").stdout) == rows
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.cert")} == written  # nothing is proved twice


def test_nothing_is_packed_while_a_certificate_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def another(*_: object) -> tuple[str, str, int]:
        return "made for another network", "", 0

    monkeypatch.setattr("surebound.cli.check._checked", another)
    monkeypatch.setattr("surebound.cli.check.ProcessPoolExecutor", lambda _: _Here())
    done = asked(tmp_path, "--eps", "1/1000")
    assert done.exit_code == 1 and "rejected: made for another network" in done.stderr
    (row,) = json.loads(done.stdout)
    assert row["rejected"] == row["certificates"] > 0 and row["sha256"] is None
    assert not list((tmp_path / "archives").glob("*.zip"))


def test_a_network_without_radii_needs_them(tmp_path: Path) -> None:
    done = asked(tmp_path)
    assert done.exit_code == 2 and "give --eps, e.g. --eps 1/10" in " ".join(done.stderr.split())
    assert not (tmp_path / "archives").exists() and torch.is_grad_enabled()


class _Here:
    """A pool that works in this process."""

    map = staticmethod(lambda work, *each, chunksize: map(work, *each))

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_archives_are_named_by_what_was_given() -> None:
    """Two runs of one preset, or two outputs of a file, had one name and one store."""
    names = ("runs/a", "runs/b", "nets/two.onnx#logits", "nets/two.onnx#other", "mynets:build", "mnist-small-ibp-0.4")
    assert [_stem(name, Fraction(8, 255)) for name in names] == [
        "a-8-255", "b-8-255", "two.onnx-logits-8-255", "two.onnx-other-8-255", "mynets-build-8-255",
        "mnist-small-ibp-0.4-8-255",
    ]  # fmt: skip
