"""One archive for the certificates of a run: networks by their digests, certificates by name, and why some are missing.

An archive is only read, never extracted. What it says of itself is not believed: sizes are limited while a member is
read, and a network counts under the digest of its content.
"""

from __future__ import annotations

import functools
import json
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from surebound.certificates.directory import NETWORK, missing
from surebound.certificates.files import network_digest
from surebound.checker.checker import LARGEST_FILE, Rejected, unpack
from surebound.errors import InputError

#: More members, or more bytes of all of them together, are refused.
MOST_FILES, MOST_BYTES = 1_000_000, 1 << 36

NETWORKS, MANIFEST, ONNX = "networks/", "manifest.json", "network.onnx"


@dataclass(frozen=True)
class StoredCertificate:
    """One certificate of a directory, at any depth, or of an archive."""

    place: Path
    name: str

    def read(self) -> tuple[bytes, bytes]:
        """Return the certificate and the network that it is about; empty if that is not there."""
        if not self.place.is_dir():
            return _archive(self.place).read(self.name)
        file = self.place / self.name
        network = file.parent / NETWORK
        if not network.is_file():
            return file.read_bytes(), b""
        about = network.stat()
        return file.read_bytes(), _content(network, about.st_mtime_ns, about.st_size)


@functools.lru_cache(1)
def _content(file: Path, changed: int, size: int) -> bytes:
    """Read a file once while it stays as it is: the checker knows a network again without hashing a new copy."""
    return file.read_bytes()


def entries(place: Path) -> list[StoredCertificate]:
    """Return the certificates of a directory or an archive, by name."""
    if place.is_dir():
        return [StoredCertificate(place, path.relative_to(place).as_posix()) for path in sorted(place.rglob("*.cert"))]
    return [StoredCertificate(place, name) for name in sorted(_archive(place).members) if name.endswith(".cert")]


def pack_archive(place: Path, archive: Path, names: Iterable[str] | None = None, *, networks: bool = True) -> int:
    """Write the certificates of a directory, or those of these names, to one archive; return how many.

    The networks are in it once each, under their digests, unless ``networks`` is False; so is ``network.onnx``.
    """
    chosen = [StoredCertificate(place, name) for name in names] if names is not None else entries(place)
    partial = archive.with_name(f".{archive.name}.partial")
    kept, why = dict[str, bytes](), dict[str, str]()
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:

        def write(name: str, content: bytes) -> None:  # the same bytes whenever it is made
            file.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)

        for entry in chosen:
            certificate, network = entry.read()
            write(entry.name, certificate)
            if networks and network not in kept.values():
                kept[network_digest(network)] = network
        for digest, network in kept.items():
            write(f"{NETWORKS}{digest}.net", network)
        for folder in sorted({(place / entry.name).parent for entry in chosen}):
            why |= missing(folder)
        if networks and (place / ONNX).is_file():
            write(ONNX, (place / ONNX).read_bytes())
        write(MANIFEST, json.dumps({"certificates": len(chosen), "missing": why}, indent=1).encode())
    partial.replace(archive)
    return len(chosen)


class _Archive:
    """An archive that is open for reading."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is neither a directory nor an archive of certificates: {error}") from error
        self._last = "", b""  # the digest and the content of the network read last
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
            with self._file.open(self.members[name]) as stream:
                content = stream.read(LARGEST_FILE + 1)
        except Exception as error:  # damaged, encrypted, packed in a way that nobody knows
            raise Rejected(f"unreadable in its archive: {error}") from None
        if len(content) > LARGEST_FILE:
            raise Rejected("too large")
        return content

    def read(self, name: str) -> tuple[bytes, bytes]:
        """Return a certificate and the network that it names."""
        certificate = self.member(name)
        try:
            digest = str(unpack(certificate)[0]["network"])
        except Exception:  # the checker says what is wrong with it
            return certificate, b""
        if self._last[0] != digest and re.fullmatch("[0-9a-f]{64}", digest):
            self._last = digest, self.member(f"{NETWORKS}{digest}.net")
        return certificate, self._last[1] if self._last[0] == digest else b""


_archive = functools.lru_cache(4)(_Archive)
