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
from surebound.certificates.packs import CERTIFICATE, PACK, Held, held
from surebound.certificates.zips import Zip
from surebound.checker.checker import unpack
from surebound.disk import whole

NETWORKS, MANIFEST, ONNX = "networks/", "manifest.json", "network.onnx"


@dataclass(frozen=True)
class StoredCertificate:
    """One certificate of a directory, at any depth, or of an archive."""

    place: Path
    name: str
    held: Held | None = None  # in which file of the directory

    def read(self) -> tuple[bytes, bytes]:
        """Return the certificate and the network that it is about; empty if that is not there."""
        if not self.place.is_dir():
            return _archive(self.place).read(self.name)
        file = self.place / self.name
        where = self.held or held(file.parent).get(file.name) or Held(file, file.name)
        network = file.parent / NETWORK
        if not network.is_file():
            return where.read_bytes(), b""
        about = network.stat()
        return where.read_bytes(), _content(network, about.st_mtime_ns, about.st_size)


@functools.lru_cache(1)
def _content(file: Path, changed: int, size: int) -> bytes:
    """Read a file once while it stays as it is: the checker knows a network again without hashing a new copy."""
    return file.read_bytes()


def entries(place: Path) -> list[StoredCertificate]:
    """Return the certificates of a directory or an archive, by name."""
    if place.is_dir():
        folders = sorted({path.parent for end in (CERTIFICATE, PACK) for path in place.rglob(f"*{end}")})
        found = [(folder, each) for folder in folders for each in held(folder).values()]
        named = (((folder / each.name).relative_to(place).as_posix(), each) for folder, each in found)
        return [StoredCertificate(place, name, each) for name, each in sorted(named, key=lambda pair: pair[0])]
    return [StoredCertificate(place, name) for name in sorted(_archive(place).members) if name.endswith(".cert")]


def pack_archive(place: Path, archive: Path, names: Iterable[str] | None = None, *, networks: bool = True) -> int:
    """Write the certificates of a directory, or those of these names, to one archive; return how many.

    The networks are in it once each, under their digests, unless ``networks`` is False; so is ``network.onnx``.
    """
    chosen = [StoredCertificate(place, name) for name in names] if names is not None else entries(place)
    kept, why = dict[str, bytes](), dict[str, str]()
    with whole(archive) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:

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
    return len(chosen)


class _Archive(Zip):
    """An archive that is open for reading."""

    _last = "", b""  # the digest and the content of the network read last

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
