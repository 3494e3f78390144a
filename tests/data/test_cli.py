"""`surebound data` from the outside."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from surebound.cli import build_app
from surebound.cli.data import progress_bars
from surebound.data import fake, registry


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return build_app()


def run(app: typer.Typer, *arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def test_list_says_what_is_there(app: typer.Typer, tmp_path: Path) -> None:
    fake.write_mnist(tmp_path)
    done = run(app, "list", "--data-dir", tmp_path, "--format", "json")
    assert done.exit_code == 0, done.output
    where = {row["name"]: row["where"] for row in json.loads(done.output)}
    assert where["mnist"] == str((tmp_path / "mnist").resolve())
    assert where["cifar10"] == "missing"
    assert set(where) == {"digits", *registry.SOURCES}
    assert run(app, "list", "--data-dir", tmp_path).exit_code == 0


def test_where(app: typer.Typer, tmp_path: Path) -> None:
    assert run(app, "where", "--data-dir", tmp_path).output.strip() == str(tmp_path)
    fake.write_svhn(tmp_path)
    done = run(app, "where", "svhn", "--data-dir", tmp_path)
    assert done.output.split() == [str(tmp_path / "svhn" / f"{split}_32x32.mat") for split in ("train", "test")]
    missing = run(app, "where", "mnist", "--data-dir", tmp_path)
    assert missing.exit_code == 2
    assert "train-images-idx3-ubyte.gz" in missing.output


def test_check(app: typer.Typer, tmp_path: Path) -> None:
    fake.write_cifar10(tmp_path)
    done = run(app, "check", "digits", "cifar10", "--data-dir", tmp_path, "--format", "json")
    assert done.exit_code == 0, done.output
    assert [(row["name"], row["status"]) for row in json.loads(done.output)] == [
        ("digits", "official"),
        ("cifar10", "generated"),
    ]
    (tmp_path / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"?")
    spoiled = run(app, "check", "cifar10", "--data-dir", tmp_path)
    assert spoiled.exit_code == 2
    assert "test_batch.bin holds 1 bytes" in spoiled.output


def test_check_says_unverified_in_the_table_only(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.SOURCES, "mnist", dataclasses.replace(registry.SOURCES["mnist"], counts=(100, 20)))
    (fake.write_mnist(tmp_path) / "surebound-generated.json").unlink()
    done = run(app, "check", "mnist", "--data-dir", tmp_path)
    assert done.exit_code == 0, done.output
    assert "unverified" in done.output


def test_fetch(app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = fake.write_svhn(tmp_path / "published")
    files = {path.name: path.read_bytes() for path in published.iterdir()}

    def arrive(remote: object, folder: Path, progress: object) -> Path:
        name = remote.file  # type: ignore[attr-defined]
        progress(name, 1, 2)  # type: ignore[operator]
        (folder / name).write_bytes(files[name])
        return folder / name

    monkeypatch.setattr("surebound.data.download._fetch_file", arrive)
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn" / "surebound-generated.json").write_bytes(files["surebound-generated.json"])
    done = run(app, "fetch", "svhn", "--data-dir", tmp_path)
    assert done.exit_code == 0, done.output
    assert "svhn: generated, 100 + 20 images" in done.output
    assert hashlib.sha256((tmp_path / "svhn" / "test_32x32.mat").read_bytes()).digest()


def test_fetch_says_what_cannot_be_fetched(app: typer.Typer, tmp_path: Path) -> None:
    done = run(app, "fetch", "imagenet64", "--data-dir", tmp_path)
    assert done.exit_code == 2
    assert "terms accepted first: https://image-net.org" in done.output
    assert run(app, "fetch", "mnnist").exit_code == 2


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bars() as progress:
        progress("file", 1, None)
        progress("file", 2, 4)
        progress("other", 4, 4)
    shown = capsys.readouterr()
    assert "file" in shown.err and "2/4 bytes" in shown.err
    assert "other" in shown.err and "4/4 bytes" in shown.err
    assert shown.out == ""


def test_nothing_is_shown_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as progress:
        progress("file", 2, 4)
    assert capsys.readouterr() == ("", "")
