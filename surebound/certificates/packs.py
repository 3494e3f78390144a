"""Certificates in a directory: a file each, or many in a pack, a zip file of what one unit of work settled together.

Creating a file takes longer than writing a small certificate. A pack is written once and whole. Where a name is there
twice (only if a run was stopped between two steps), a file of its own counts, then the pack with the largest number.
"""

from __future__ import annotations

import functools
import io
import os
import re
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from surebound.certificates.zips import Zip
from surebound.checker.checker import Rejected
from surebound.disk import write_whole
from surebound.errors import InputError

CERTIFICATE, PACK = ".cert", ".certs"

#: Certificates that are written together become a pack if they are at least so many.
FEWEST = 32

_NUMBERED = re.compile(r"pack-([0-9]{1,9})\b.*")


@dataclass(frozen=True)
class Held:
    """Where a certificate is: in a file of its own, or in a pack; ``name`` ends with .cert."""

    file: Path
    name: str

    def read_bytes(self) -> bytes:
        """Return the certificate, or nothing if a pack is damaged: the checker rejects that."""
        if self.file.suffix != PACK:
            return self.file.read_bytes()
        pack = _opened(self.file)
        try:
            return b"" if pack is None else pack.member(self.name)
        except Rejected:
            return b""

    def uri(self) -> str:
        """Return its address: of a member the pack's, and its name in it."""
        return self.file.absolute().as_uri() + ("" if self.file.name == self.name else f"#{self.name}")


def held(folder: Path) -> dict[str, Held]:
    """Return the certificates of a directory, by name; of a pack that cannot be read the pack, by its own name."""
    found = dict[str, Held]()
    for file in _packs(folder):
        pack = _opened(file)
        names = [file.name] if pack is None else [name for name in pack.members if _is_plain(name)]
        found |= {name: Held(file, name) for name in names}
    single = (Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith(CERTIFICATE))
    return found | {file.name: Held(file, file.name) for file in single}


def write_pack(folder: Path, contents: Mapping[str, bytes]) -> Path:
    """Write certificates, by name, to a new pack."""
    number = max((_number(file) for file in _packs(folder)), default=0) + 1
    path = folder / f"pack-{number:05d}.{os.getpid()}{PACK}"  # two processes may write to one directory
    write_whole(path, _zipped(contents))
    return path


def drop(pack: Path, names: Collection[str]) -> None:
    """Take certificates out of a pack: others of these names have been written."""
    found = _opened(pack)
    if found is None:
        return
    try:
        left = {name: found.member(name) for name in found.members if name not in names}
    except Rejected:  # damaged: what is newer counts anyway
        return
    if left:
        write_whole(pack, _zipped(left))
    else:
        pack.unlink()


def _zipped(contents: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:  # certificates are deflated already
        for name, content in contents.items():
            file.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def _is_plain(name: str) -> bool:
    """Is a member's name one that a file of the directory could have?"""
    return name.endswith(CERTIFICATE) and name == Path(name).name


def _packs(folder: Path) -> list[Path]:
    """Return the packs of a directory, the newest last."""
    return sorted((f for f in folder.glob(f"*{PACK}") if not f.name.startswith(".")), key=lambda f: (_number(f), f))


def _number(pack: Path) -> int:
    found = _NUMBERED.match(pack.name)
    return 0 if found is None else int(found[1])


def _opened(pack: Path) -> Zip | None:
    """Open a pack; None if it is none."""
    try:
        about = pack.stat()
        return _zip(pack, about.st_mtime_ns, about.st_size)
    except (OSError, InputError, Rejected):
        return None


@functools.lru_cache(256)
def _zip(pack: Path, changed: int, size: int) -> Zip:
    """Open a pack once while it stays as it is."""
    return Zip(pack)
