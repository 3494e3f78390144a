"""A directory of certificates: the network once, and a file for each question."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from surebound.certificates.evidence import Evidences
from surebound.certificates.files import opened
from surebound.certificates.write import Arrays, Claims, Uncertified
from surebound.errors import GraphError, InputError, StoreError
from surebound.graph import Program
from surebound.numerics import exact_fraction
from surebound.region import LinfBall

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
        _write(network, self._claims.network)

    def file(self, name: str) -> Path:
        """Return where the certificate of that name is."""
        return self.path / f"{name}.cert"

    def certifies(self, name: str, ball: LinfBall, label: int, claim: str) -> bool:
        """Is the certificate of that name there, and about this ball of one image, label, answer and network?"""
        question, arrays = _label_question(ball, label)
        return self._is_about(name, {**question, "claim": claim, "network": self._claims.digest}, arrays)

    def _is_about(self, name: str, header: Mapping[str, Any], arrays: Arrays) -> bool:
        try:
            found, numbers = opened(self.file(name).read_bytes())
        except (OSError, InputError):
            return False
        same = all(found.get(key) == value for key, value in header.items())
        return same and all(np.array_equal(numbers.get(key, np.nan), value) for key, value in arrays.items())

    def label_proved(self, name: str, ball: LinfBall, label: int, mode: str, evidence: Evidences) -> bool:
        """Write the certificate that a label stays the largest output in a ball (of one image), if there can be one."""
        question, arrays = _label_question(ball, label)

        def whole() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            box = ball.interval()
            return box.lower.flatten().double().numpy(), box.upper.flatten().double().numpy()

        others = tuple((case - (case > label), each) for case, each in evidence if case != label)
        return self._keep(name, lambda: self._claims.robust(question, arrays, mode, others, whole), ball, label)

    def label_refuted(self, name: str, ball: LinfBall, label: int, witness: Tensor) -> bool:
        """Write the certificate of a counterexample."""
        question, arrays = _label_question(ball, label)
        point = witness.detach().cpu().numpy()
        return self._keep(name, lambda: self._claims.falsified(question, arrays, point), ball, label)

    def label_open(self, name: str, ball: LinfBall, label: int, why: str) -> bool:
        """Note that a verdict on a label has no certificate, and why; always False. A file of another question goes."""
        question, arrays = _label_question(ball, label)
        if self.file(name).exists() and not self._is_about(name, question, arrays):
            self.file(name).unlink()
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

    def _keep(
        self, name: str, make: Callable[[], bytes], ball: LinfBall | None = None, label: int | None = None
    ) -> bool:
        try:
            _write(self.file(name), make())
        except Uncertified as error:
            if ball is None or label is None:
                return self.none(name, str(error))
            return self.label_open(name, ball, label, str(error))
        return True


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
    return {name: why for name, why in noted.items() if not (path / f"{name}.cert").is_file()}


def _label_question(ball: LinfBall, label: int) -> tuple[dict[str, Any], Arrays]:
    """Return the question whether a label stays the largest output in a ball, as certificates have it."""
    image: NDArray[np.float32] = ball.x[0].detach().cpu().numpy()
    ends = None if ball.clip is None else [str(end) for end in _clip_around(image, ball.clip)]
    return {"label": label, "region": {"kind": "ball", "eps": str(ball.eps), "clip": ends}}, {"center": image}


def _clip_around(image: NDArray[np.float32], clip: tuple[float, float]) -> tuple[Fraction, Fraction]:
    """Return the ends of valid inputs, further out where the image lies beyond them: 0.1 is no float32, and its pixels
    of 0.1 are above it. The region that was bounded holds them (``LinfBall``)."""
    low, high = _ends(clip)
    if not image.size:
        return low, high
    least, largest = float(image.min()), float(image.max())
    # a float is compared with a fraction exactly, and is a fraction of its own only where it is needed
    return Fraction(least) if least < low else low, Fraction(largest) if largest > high else high


@functools.lru_cache(16)
def _ends(clip: tuple[float, float]) -> tuple[Fraction, Fraction]:
    low, high = clip
    return exact_fraction(low, "clip"), exact_fraction(high, "clip")


def open_directory(path: Path, program: Program) -> CertificateDirectory:
    """Prepare a directory for certificates about a program, or say which operator keeps it from having any."""
    try:
        return CertificateDirectory(path, program)
    except GraphError as error:
        raise GraphError(f"no certificates can be written: {error} (docs/certificates.md lists what can)") from error


def _write(path: Path, content: bytes) -> None:
    """Write a file so that no reader sees half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)
