"""Files that are whole or not there, and errors of the file system in words."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a path to write to, which takes the place of a file at the end; on a failure nothing of it is kept."""
    path = path.resolve()  # a link stays one
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a write does not say of what
            error.filename = str(path)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that no reader sees half of it; what is no ordinary file, /dev/stdout for one, as it is."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    with whole(path) as partial:
        partial.write_bytes(content)


def is_full(error: BaseException) -> bool:
    """Say whether an error is that of a full disk, a quota or a limit of sizes; some libraries give its text alone."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return any(os.strerror(number) in str(error) for number in _FULL)


def explained(error: BaseException) -> str:
    """Return what an error of the file system says, and what to do about it if that is known."""
    return f"{error}. {found}" if (found := advice(error)) else str(error)


def advice(error: BaseException) -> str:
    """Say what to do about an error of the file system; nothing if nobody can tell."""
    if is_full(error):
        return "The disk is full: free some space and give the same command again; what was finished is kept."
    if isinstance(error, OSError) and error.errno in _FORBIDDEN:
        return "Check permissions, or name another place."
    return ""
