"""A directory of certificates: the network once, and a file for each question."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surebound.certificates.asked import AskedLabel
from surebound.certificates.evidence import Evidences
from surebound.certificates.files import opened
from surebound.certificates.packs import CERTIFICATE, FEWEST, PACK, Held, drop, held, write_pack
from surebound.certificates.write import Arrays, Claims, Uncertified
from surebound.disk import write_whole
from surebound.errors import GraphError, InputError, StoreError
from surebound.graph import Program

NETWORK = "network.net"

#: Lines NAME, tab, why that verdict has no certificate.
MISSING = "missing.txt"


def certificate_name(index: int, eps: Fraction) -> str:
    """Name the certificate of an image at a radius."""
    return f"{index:05d}.eps-{eps.numerator}-{eps.denominator}"


class CertificateDirectory:
    """Writes certificates of one network as verdicts come; a file is whole or not there."""

    def __init__(self, path: Path, program: Program) -> None:
        self.path, self._claims = path, Claims.about(program)
        path.mkdir(parents=True, exist_ok=True)
        network = path / NETWORK
        if network.exists() and network.read_bytes() != self._claims.network:
            raise StoreError(f"{path} holds certificates of another network; choose another directory")
        write_whole(network, self._claims.network)
        self._held = held(path)
        self._waiting: dict[str, bytes] | None = None  # what is written together, by file name

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Write the certificates that come within at its end: in one pack, if they are many."""
        self._waiting = {}
        try:
            yield
            written = self._waiting
        finally:
            self._waiting = None
        if len(written) >= FEWEST:
            pack = write_pack(self.path, written)
            self._note({name: Held(pack, name) for name in written})
        else:
            for name, content in written.items():
                self._write(name, content)

    def certifies(self, name: str, asked: AskedLabel, claim: str) -> bool:
        """Is the certificate of that name there, and about this question, this answer and this network?"""
        question, arrays = asked.question()
        return self._is_about(name, {**question, "claim": claim, "network": self._claims.digest}, arrays)

    def _is_about(self, name: str, header: Mapping[str, Any], arrays: Arrays) -> bool:
        place = self._held.get(name + CERTIFICATE)
        try:
            found, numbers = opened(b"" if place is None else place.read_bytes())
        except (OSError, InputError):
            return False
        same = all(found.get(key) == value for key, value in header.items())
        return same and all(np.array_equal(numbers.get(key, np.nan), value) for key, value in arrays.items())

    def label_proved(self, name: str, asked: AskedLabel, mode: str, evidence: Evidences) -> bool:
        """Write the certificate that a label stays the largest output, if there can be one."""
        question, arrays = asked.question()
        others = tuple((case - (case > asked.label), each) for case, each in evidence if case != asked.label)
        return self._keep(name, lambda: self._claims.robust(question, arrays, mode, others, asked.ends), asked)

    def labels_refuted(self, found: Sequence[tuple[str, AskedLabel, Tensor]]) -> None:
        """Write the certificates of counterexamples: names, questions, and the points (C, H, W)."""
        if not found:
            return
        points = torch.stack([point for *_, point in found]).detach().cpu().numpy()
        for (name, asked, _), point, outputs in zip(found, points, self._claims.outputs(points), strict=True):
            falsified = functools.partial(self._claims.falsified, *asked.question(), point, outputs)
            self._keep(name, falsified, asked)

    def label_open(self, name: str, asked: AskedLabel, why: str) -> bool:
        """Note that a verdict on a label has no certificate, and why; always False. A file of another question goes."""
        if name + CERTIFICATE in self._held and not self._is_about(name, *asked.question()):
            _remove([self._held.pop(name + CERTIFICATE)])
        return self.none(name, why)

    def cases_proved(
        self, name: str, box: tuple[Tensor, Tensor], c: Tensor, d: Tensor, mode: str, evidence: Evidences
    ) -> bool:
        """Write the certificate that no case of rows c (N, S, K), d (N, S) holds in a box of ends (1, *input)."""
        lower, upper = (end[0].detach().cpu().numpy() for end in box)
        there = d.isfinite()  # a case with fewer rows is filled up by ones that always hold
        arrays: Arrays = {
            "lower": lower,
            "upper": upper,
            "c": (c * there.unsqueeze(2)).double().numpy(),
            "d": d.where(there, d.new_ones(())).double().numpy(),
        }
        whole = lower.reshape(-1).astype(np.float64), upper.reshape(-1).astype(np.float64)
        ask = {"region": {"kind": "box"}}
        return self._keep(name, lambda: self._claims.robust(ask, arrays, mode, evidence, lambda: whole))

    def none(self, name: str, why: str) -> bool:
        """Note that a verdict has no certificate, and why; always False."""
        note_missing(self.path, name, why)
        return False

    def _keep(self, name: str, make: Callable[[], bytes], asked: AskedLabel | None = None) -> bool:
        try:
            content = make()
        except Uncertified as error:
            return self.none(name, str(error)) if asked is None else self.label_open(name, asked, str(error))
        if self._waiting is None:
            self._write(name + CERTIFICATE, content)
        else:
            self._waiting[name + CERTIFICATE] = content
        return True

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self.path / name, content)
        self._note({name: Held(self.path / name, name)})

    def _note(self, new: Mapping[str, Held]) -> None:
        """Note where certificates are now, and take away what was there under their names."""
        old = [self._held[name] for name, now in new.items() if self._held.get(name, now) != now]
        self._held.update(new)
        _remove(old)


def _remove(old: Iterable[Held]) -> None:
    """Take certificates away: files, and members of packs, each pack once."""
    by_file: dict[Path, list[str]] = {}
    for each in old:
        by_file.setdefault(each.file, []).append(each.name)
    for file, names in by_file.items():
        if file.suffix == PACK:
            drop(file, names)
        else:
            file.unlink(missing_ok=True)


def note_missing(path: Path, name: str, why: str) -> None:
    """Note in a directory that a verdict has no certificate."""
    path.mkdir(parents=True, exist_ok=True)
    with (path / MISSING).open("a", encoding="utf-8") as file:
        file.write(f"{name}\t{' '.join(why.split())}\n")


def missing(path: Path) -> dict[str, str]:
    """Return the verdicts of a directory that have no certificate, by name, and why."""
    if not (path / MISSING).is_file():
        return {}
    lines = (path / MISSING).read_text(encoding="utf-8").splitlines()
    noted = dict(line.split("\t", 1) for line in lines if "\t" in line)
    there = held(path) if noted else {}
    return {name: why for name, why in noted.items() if name + CERTIFICATE not in there}


def open_directory(path: Path, program: Program) -> CertificateDirectory:
    """Prepare a directory for certificates about a program, or say which operator keeps it from having any."""
    try:
        return CertificateDirectory(path, program)
    except GraphError as error:
        raise GraphError(f"no certificates can be written: {error} (docs/certificates.md lists what can)") from error
