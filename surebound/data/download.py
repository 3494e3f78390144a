"""Fetching published files with pooch: checksum, retries, resumption, progress.

A file appears under its name only when it is complete and has the published checksum. What a broken
connection leaves is kept as `.NAME.part` and continued from; a full disk or a wrong checksum leaves nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from surebound.data.files import is_file
from surebound.data.source import Remote, Source
from surebound.errors import DownloadError

RETRIES = 3
TIMEOUT = (10.0, 60.0)  # seconds to connect, seconds without a byte
CHUNK = 1 << 16

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes there are, and the bytes there will be (None: not known)."""


class _CannotWriteError(DownloadError):
    """The trouble is on this side."""


def silent(file: str, done: int, total: int | None) -> None:
    """Progress that is told to nobody."""


def fetch(source: Source, folder: Path, progress: Progress = silent) -> list[Path]:
    """Download the published files of `source` that `folder` lacks; returns their paths."""
    if not source.remotes:
        raise DownloadError(
            f"{source.title} cannot be downloaded automatically: its publisher wants its terms "
            f"accepted first. Get it from {source.page}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"{folder} cannot be made: {error.strerror}; choose another --data-dir") from error
    missing = [
        remote
        for remote in source.remotes
        if not is_file(folder / remote.file) and not is_file(folder / remote.file.removesuffix(".gz"))
    ]
    return [_fetch_file(remote, folder, progress) for remote in missing]


def _fetch_file(remote: Remote, folder: Path, progress: Progress) -> Path:
    """One file, from the first of its addresses that delivers it."""
    target = folder / remote.file
    failures = []
    with _alone(folder):
        if is_file(target):  # another process fetched it while this one waited
            return target
        for url in remote.urls:
            try:
                _fetch_url(url, remote, folder, progress)
                return target
            except _CannotWriteError:
                raise  # another address would not help
            except DownloadError as error:
                failures.append(f"{url}: {error}")
    raise DownloadError(
        f"{remote.file} could not be downloaded. " + "; ".join(failures) + f". Without network, put the file "
        f"(md5 {remote.md5}) into {folder} by hand"
    )


def _fetch_url(url: str, remote: Remote, folder: Path, progress: Progress) -> None:
    import pooch
    import requests

    store = pooch.create(
        folder, base_url="", registry={remote.file: f"md5:{remote.md5}"}, urls={remote.file: url},
        retry_if_failed=RETRIES,
    )  # fmt: skip
    downloader = _Resuming(folder / f".{remote.file}.part", remote.file, progress)
    try:
        with _quiet(pooch.get_logger()):
            store.fetch(remote.file, downloader=downloader)
    except requests.RequestException as error:
        raise DownloadError(_reason(error, url)) from error
    except ValueError as error:  # pooch: the checksum
        raise DownloadError(f"the file arrived with a wrong checksum, not md5 {remote.md5}") from error
    except OSError as error:
        raise _CannotWriteError(f"{folder} cannot be written: {error.strerror or error}") from error


def _reason(error: Exception, url: str) -> str:
    """Few words for the usual troubles; the library's own are long."""
    import requests

    if isinstance(error, requests.Timeout):
        return "the server did not answer in time"
    if isinstance(error, requests.ConnectionError):
        return f"no connection to {urlsplit(url).hostname}"
    return str(error) or type(error).__name__


class _Resuming:
    """A pooch downloader that continues a part file where the last attempt stopped."""

    def __init__(self, part: Path, name: str, progress: Progress) -> None:
        self.part, self.name, self.progress = part, name, progress

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:
        import requests

        have = self.part.stat().st_size if is_file(self.part) else 0
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                self.part.unlink()  # longer than the file: not a part of it; the next attempt begins anew
            if 400 <= response.status_code < 500 and not have:
                raise DownloadError(f"the server answered {response.status_code} {response.reason}")
            response.raise_for_status()
            if response.status_code != requests.codes.partial_content:
                have = 0
            self._receive(response, have)
        os.replace(self.part, output_file)  # pooch compares the checksum there, then gives it its name

    def _receive(self, response: Any, have: int) -> None:
        import requests

        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        try:
            with self.part.open("ab" if have else "wb") as out:
                self.progress(self.name, have, total)
                for chunk in response.iter_content(CHUNK):
                    out.write(chunk)
                    have += len(chunk)
                    self.progress(self.name, have, total)
        except requests.RequestException:
            raise  # the part is kept; pooch tries again
        except OSError as error:
            self.part.unlink(missing_ok=True)
            raise _CannotWriteError(
                f"{self.name} cannot be written to {self.part.parent}: {error.strerror}. Make room there, or "
                "choose another --data-dir; nothing was kept"
            ) from error
        if total is not None and have != total:
            raise requests.exceptions.ChunkedEncodingError(f"the connection broke after {have} of {total} bytes")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One downloading process for each folder, where the system can do that; a lock ends with its process."""
    try:
        import fcntl
    except ImportError:  # Windows: two processes would spoil each other's part, which the checksum notices
        yield
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise _CannotWriteError(f"{folder} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """The library prints nothing: pooch's announcements are held back."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
