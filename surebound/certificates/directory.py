"""A directory of certificates: the network once, and a file for each question."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
from torch import Tensor

from surebound.certificates.write import Claims, label_evidence, label_question
from surebound.errors import StoreError
from surebound.region import LinfBall
from surebound.search.question import Proof
from surebound.search.record import Record
from surebound.verdict import Status

NETWORK = "network.net"


class CertificateDirectory:
    """Writes certificates of one network as verdicts come; a file is whole or not there."""

    def __init__(self, path: Path, claims: Claims, clip: tuple[float, float] | None) -> None:
        self.path, self._claims, self._clip = path, claims, clip
        self.written, self.without = 0, 0  # certificates, and verdicts that have none
        path.mkdir(parents=True, exist_ok=True)
        network = path / NETWORK
        if network.exists() and network.read_bytes() != claims.network:
            raise StoreError(f"{path} holds certificates of another network; choose another directory")
        _write(network, claims.network)

    def file_of(self, index: int, eps: Fraction) -> Path:
        """Return where the certificate of an example at a radius is."""
        return self.path / f"{index:05d}.eps-{eps.numerator}-{eps.denominator}.cert"

    def has(self, record: Record) -> bool:
        """Is there a certificate of this verdict, or no need of one?"""
        return not record.verdict.status.decided or self.file_of(record.index, record.eps).exists()

    def add(self, record: Record, image: Tensor) -> None:
        """Write the certificate of a verdict, if it has one."""
        if not record.verdict.status.decided:
            return
        found = self._certificate(record, image)
        if found is None:
            self.without += 1
            return
        _write(self.file_of(record.index, record.eps), found)
        self.written += 1

    def _certificate(self, record: Record, image: Tensor) -> bytes | None:
        array = image.detach().cpu().numpy().astype(np.float32)
        question, arrays = label_question(array, record.label, record.eps, self._clip)
        witness = record.verdict.witness
        if record.verdict.status is Status.FALSIFIED:
            return None if witness is None else self._claims.falsified(question, arrays, witness.cpu().numpy())
        mode, evidence = record.proof or (Proof.TOLERANCE, ())
        if mode is Proof.TOLERANCE:
            return None
        box = LinfBall(image.unsqueeze(0), record.eps, self._clip).interval()
        whole = box.lower.flatten().double().numpy(), box.upper.flatten().double().numpy()
        return self._claims.robust(question, arrays, mode, label_evidence(evidence, record.label), whole)


def _write(path: Path, content: bytes) -> None:
    """Write a file so that no reader sees half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)
