"""Zip files that may be hostile: their members are only read, within limits, never extracted."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from surebound.checker.checker import LARGEST_FILE, Rejected
from surebound.errors import InputError

#: More members, or more bytes of all of them together, are refused.
MOST_FILES, MOST_BYTES = 1_000_000, 1 << 36


class Zip:
    """A zip file that is open for reading; InputError if it is none, or too large."""

    def __init__(self, path: Path) -> None:
        try:
            self._path, self._process, self._file = path, os.getpid(), zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is neither a directory nor an archive of certificates: {error}") from error
        found = self._file.infolist()
        self.members = {info.filename: info for info in found}
        if len(found) > MOST_FILES or sum(info.file_size for info in found) > MOST_BYTES:
            raise InputError(f"{path} holds {len(found):,} files, or more bytes than {MOST_BYTES >> 30} GiB; refused")
        if len(self.members) < len(found):
            raise InputError(f"{path} holds two files of one name; an archive that `surebound check` wrote has none")

    def member(self, name: str) -> bytes:
        """Return the content of a member, or nothing if it is not there; Rejected if it is damaged or too large."""
        if name not in self.members:
            return b""
        try:
            if self._process != os.getpid():  # a forked process shares its parent's place in an open file
                self._process, self._file = os.getpid(), zipfile.ZipFile(self._path)
            with self._file.open(self.members[name]) as stream:
                content = stream.read(LARGEST_FILE + 1)
        except Exception as error:  # damaged, encrypted, packed in a way that nobody knows
            raise Rejected(f"unreadable in its archive: {error}") from None
        if len(content) > LARGEST_FILE:
            raise Rejected("too large")
        return content
