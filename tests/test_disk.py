"""A full disk: a clear error that says what to do, no half file, and what was decided is kept.

A limit of the size of files stands for it (EFBIG for ENOSPC): it needs no rights and no disk.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import surebound as sb
from surebound.certificates.archive import entries, pack_archive
from surebound.cli import build_app
from surebound.disk import advice, explained, is_full, write_whole
from surebound.errors import InputError, QueryError, StoreError
from surebound.report.table import write_text
from surebound.verify import sqlite_file
from surebound.verify.store import Store
from surebound.vnnlib.files import write_questions
from tests.cli.digits_net import build

NET = "tests.cli.digits_net:build"
FREE = "free some space"


@contextmanager
def files_of(most: int) -> Iterator[None]:
    """Refuse files of more bytes; Python ignores the signal that goes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a directory with images that the network reads rightly, and two that it does not."""
    monkeypatch.chdir(tmp_path)
    images = sb.data.load("digits").test.batch(torch.arange(40))[0]
    labels = build()(images).argmax(1)
    labels[:2] = 9 - labels[:2]
    save_file({"images": images, "labels": labels}, "read.safetensors")
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(build_app(), list(arguments))
    assert found.exception is None or isinstance(found.exception, SystemExit), repr(found.exception)
    return found.exit_code, " ".join(found.output.split())


def test_files_are_whole_or_as_they_were(tmp_path: Path) -> None:
    path, link = tmp_path / "a", tmp_path / "link"
    write_whole(path, b"old")
    link.symlink_to(path)
    with files_of(100), pytest.raises(OSError, match="File too large") as raised:
        write_whole(link, bytes(200))
    assert is_full(raised.value) and FREE in explained(raised.value)
    assert path.read_bytes() == b"old" and sorted(tmp_path.iterdir()) == [path, link]
    write_whole(link, b"new")
    assert link.is_symlink() and path.read_bytes() == b"new" and sorted(tmp_path.iterdir()) == [path, link]
    write_whole(Path(os.devnull), b"to a device")
    assert not Path(os.devnull).is_file()


def test_errors_of_the_file_system_have_advice() -> None:
    assert FREE in advice(OSError(errno.ENOSPC, "")) and FREE in advice(ValueError("No space left on device (os 28)"))
    assert "permissions" in advice(PermissionError(errno.EACCES, ""))
    assert advice(FileNotFoundError(errno.ENOENT, "")) == advice(ValueError("odd")) == ""


def test_what_commands_write(digits: Path) -> None:
    asked = (NET, "--data", "read.safetensors", "--eps", "1/50", "--quiet")
    for words in (
        ("attack", *asked, "--steps", "1", "--restarts", "1", "--save", "w.safetensors"),
        ("verify", *asked, "--cascade", "fast", "--jobs", "1", "--certificates", "proofs"),
        ("export", NET, "--data", "read.safetensors", "--onnx", "net.onnx"),
    ):
        with files_of(600):
            code, said = run(*words)
        assert code == 2 and "File too large: '" in said and FREE in said, said
        assert not [path for path in digits.rglob("*") if path.is_file() and path.name != "read.safetensors"]
        assert run(*words)[0] == 0
        for path in (digits / "w.safetensors", digits / "net.onnx"):
            path.unlink(missing_ok=True)
        shutil.rmtree("proofs", ignore_errors=True)


def test_queries_and_pages(tmp_path: Path) -> None:
    """Half of a query may be a query, of fewer conditions."""
    with files_of(600), pytest.raises(QueryError, match=FREE):
        write_questions(torch.rand(1, 1, 8, 8), torch.tensor([0]), 10, Fraction(1, 50), tmp_path / "queries")
    with files_of(600), pytest.raises(InputError, match=FREE):
        write_text(tmp_path / "page.html", "x" * 700)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_verdicts_and_certificates_go_on(digits: Path) -> None:
    net = build().requires_grad_(False)
    x = sb.data.load("digits").test.batch(torch.arange(40))[0]
    labels = net(x).argmax(1)
    ask = lambda: sb.verify(net, sb.LinfBall(x, "1/100", clip=(0, 1)), labels, "fast", out="o", certificates="c")  # noqa: E731
    network = 8_000  # bytes of network.net, about: the store and packs need more
    for most in (network, 3 * network):
        with files_of(most), pytest.raises((StoreError, OSError)):
            ask()
        assert not list(Path("c").glob(".*"))
    decided = [record for record in ask() if record.verdict.status.decided]
    assert len(entries(Path("c"))) == len(decided) > 32
    with files_of(600), pytest.raises(OSError, match="File too large"):
        pack_archive(Path("c"), Path("all.zip"))
    assert sorted(path.name for path in digits.glob("*")) == ["c", "o", "read.safetensors"]
    with Store.read("o/results.db") as store:
        assert len(list(store.records())) == 40


def test_a_store_without_room_for_what_processes_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    assert FREE not in str(sqlite_file._explained(tmp_path / "results.db", error))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))
    assert FREE in str(sqlite_file._explained(tmp_path / "results.db", error))
