"""Downloads from a server of our own that breaks in every way a server can."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import http.server
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from surebound.data import Status, download, fake, load, registry
from surebound.data.download import fetch
from surebound.data.marker import mark_generated
from surebound.data.source import Remote
from surebound.errors import DataError, DownloadError, MissingDataError

CONTENT = bytes(range(256)) * 4000  # a megabyte


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`, with ranges, and misbehaves as `server.troubles` says, one request at a time."""

    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Range")))
        trouble = self.server.troubles.pop(0) if self.server.troubles else ""
        content = self.server.files.get(self.path.removeprefix("/"))
        if content is None or trouble == "404":
            self.send_error(404)
            return
        if trouble == "503":
            self.send_error(503)
            return
        start = 0
        if (wanted := self.headers.get("Range")) and trouble != "no ranges":
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
        body = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if trouble == "break":
            body = body[: len(body) // 2]
        if trouble == "garble":
            body = bytes(len(body))
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


class Server(http.server.ThreadingHTTPServer):
    files: dict[str, bytes]
    troubles: list[str]
    requests: list[tuple[str, str | None]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    server = Server(("127.0.0.1", 0), Handler)
    server.files, server.troubles, server.requests = {"file": CONTENT}, [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def published(*urls: str, content: bytes = CONTENT) -> registry.Source:
    """A dataset of one published file."""
    return dataclasses.replace(registry.SOURCES["mnist"], remotes=(Remote("file", md5(content), urls),))


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_a_file_arrives_and_its_progress_is_told(tmp_path: Path, server: Server) -> None:
    told: list[tuple[str, int, int | None]] = []
    paths = fetch(published(server.url + "file"), tmp_path / "new", lambda *news: told.append(news))
    assert paths == [tmp_path / "new" / "file"]
    assert paths[0].read_bytes() == CONTENT
    assert told[0] == ("file", 0, len(CONTENT))
    assert told[-1] == ("file", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert names_in(tmp_path / "new") == {"file"}
    assert paths[0].stat().st_mode & 0o044 or os.umask(0o022) & 0o044  # others may read it too


def test_what_is_there_is_not_fetched_again(tmp_path: Path, server: Server) -> None:
    source = published(server.url + "file")
    fetch(source, tmp_path)
    assert fetch(source, tmp_path) == []
    assert len(server.requests) == 1


def test_a_broken_connection_is_continued_where_it_broke(tmp_path: Path, server: Server) -> None:
    server.troubles = ["break", "503", "break"]
    (path,) = fetch(published(server.url + "file"), tmp_path)
    assert path.read_bytes() == CONTENT
    starts = [int(wanted[6:-1]) if wanted else 0 for _, wanted in server.requests]
    half, chunk = len(CONTENT) // 2, download.CHUNK  # the chunk that broke off is not kept
    assert starts[0] == 0
    assert half - chunk < starts[1] <= half
    assert starts[2] == starts[1]
    assert starts[3] > starts[2] + chunk
    assert names_in(tmp_path) == {"file"}


def test_a_later_call_continues_what_an_earlier_one_left(tmp_path: Path, server: Server) -> None:
    server.troubles = ["break", "503", "503", "503"]
    with pytest.raises(DownloadError, match="503"):
        fetch(published(server.url + "file"), tmp_path)
    assert names_in(tmp_path) == {".file.part"}  # under a name that is never read as data
    with pytest.raises(MissingDataError):
        load("mnist", tmp_path)
    (path,) = fetch(published(server.url + "file"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.requests[-1][1] is not None
    assert names_in(tmp_path) == {"file"}


def test_a_server_without_ranges_begins_anew(tmp_path: Path, server: Server) -> None:
    server.troubles = ["break", "no ranges"]
    (path,) = fetch(published(server.url + "file"), tmp_path)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"x" * 1000, CONTENT + b"too long", CONTENT])
def test_a_part_of_something_else_is_noticed(tmp_path: Path, server: Server, left: bytes) -> None:
    (tmp_path / ".file.part").write_bytes(left)
    (path,) = fetch(published(server.url + "file"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert names_in(tmp_path) == {"file"}


def test_a_garbled_transfer_is_tried_again(tmp_path: Path, server: Server) -> None:
    server.troubles = ["garble"]
    (path,) = fetch(published(server.url + "file"), tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(tmp_path: Path, server: Server) -> None:
    with pytest.raises(DownloadError, match=r"wrong checksum, not md5 .* put the file \(md5 .*\) into .* by hand"):
        fetch(published(server.url + "file", content=b"another"), tmp_path)
    assert names_in(tmp_path) == set()


def test_the_next_address_is_tried(tmp_path: Path, server: Server) -> None:
    (path,) = fetch(published(server.url + "gone", server.url + "file"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert [where for where, _ in server.requests] == ["/gone", "/file"]  # a 404 is not asked again


def test_all_failures_are_told(tmp_path: Path, server: Server) -> None:
    closed = "http://127.0.0.1:9/file"
    with pytest.raises(DownloadError, match=r"gone: the server answered 404 .*; .*: no connection to 127\.0\.0\.1"):
        fetch(published(server.url + "gone", closed), tmp_path)
    assert names_in(tmp_path) == set()


def test_a_silent_server_times_out(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    def never(*_: Any, **__: Any) -> None:
        raise requests.ReadTimeout("nothing came")

    monkeypatch.setattr(requests, "get", never)
    with pytest.raises(DownloadError, match="the server did not answer in time"):
        fetch(published(server.url + "file"), tmp_path)


def test_a_full_disk_leaves_nothing(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: Any) -> None: ...

    opened = Path.open

    def open_full(path: Path, *arguments: Any, **named: Any) -> Any:
        opened(path, *arguments, **named).close()
        return Full()

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(DownloadError, match=r"No space left on device\. Make room there, or choose another --data-dir"):
        fetch(published(server.url + "file", server.url + "file"), tmp_path)
    assert names_in(tmp_path) == set()
    assert len(server.requests) == 1  # no retry, no other address: neither would help


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_really_full_disk_leaves_nothing(small_disk: Path, server: Server) -> None:
    with pytest.raises(DownloadError, match="No space left on device"):
        fetch(published(server.url + "file"), small_disk)
    assert names_in(small_disk) == set()


def test_a_directory_that_cannot_be_written(
    open_path: Path, server: Server, ordinary_rights: Callable[[], AbstractContextManager[None]]
) -> None:
    open_path.chmod(0o555)
    with ordinary_rights(), pytest.raises(DownloadError, match=r"cannot be (written|made)"):
        fetch(published(server.url + "file"), open_path)
    with (
        ordinary_rights(),
        pytest.raises(DownloadError, match=r"cannot be made: .*choose another --data-dir"),
    ):
        fetch(published(server.url + "file"), open_path / "inner")
    assert names_in(open_path) == set()


def test_two_at_a_time_do_not_spoil_each_other(tmp_path: Path, server: Server) -> None:
    source = published(server.url + "file")
    failures: list[BaseException] = []

    def run() -> None:
        try:
            fetch(source, tmp_path)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_load_downloads_only_if_allowed(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fake.write_mnist(tmp_path / "published")
    server.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    remotes = tuple(
        Remote(remote.file, md5(server.files[remote.file]), (server.url + remote.file,))
        for remote in registry.SOURCES["mnist"].remotes
    )
    monkeypatch.setitem(registry.SOURCES, "mnist", dataclasses.replace(registry.SOURCES["mnist"], remotes=remotes))
    here = tmp_path / "here"
    with pytest.raises(MissingDataError, match="surebound data fetch mnist"):
        load("mnist", here)
    assert not here.exists()
    assert server.requests == []
    (here / "mnist").mkdir(parents=True)
    mark_generated(here / "mnist", 100, 20)
    data = load("mnist", here, download=True)
    assert data.provenance.status is Status.GENERATED
    assert data.provenance.digest == load("mnist", tmp_path / "published").provenance.digest
    assert len(server.requests) == 4


def test_what_must_be_asked_for_is_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"terms accepted first: https://image-net\.org"):
        load("imagenet64", tmp_path, download=True)
    with pytest.raises(DownloadError, match="cannot be downloaded automatically"):
        fetch(registry.SOURCES["imagenet64"], tmp_path)


def test_the_library_says_nothing(tmp_path: Path, server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    server.troubles = ["503"]
    fetch(published(server.url + "file"), tmp_path)
    assert capfd.readouterr() == ("", "")
    download.silent("file", 1, 2)
