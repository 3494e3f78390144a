"""A directory of certificates: the network once, and a file for each question."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from surebound.certificates.evidence import Evidences
from surebound.certificates.write import Arrays, Claims
from surebound.errors import GraphError, StoreError
from surebound.graph import Program
from surebound.numerics import exact_fraction
from surebound.region import LinfBall

NETWORK = "network.net"


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

    def label_proved(self, name: str, ball: LinfBall, label: int, mode: str, evidence: Evidences) -> bool:
        """Write the certificate that a label stays the largest output in a ball (of one image), if there can be one."""
        question, arrays = _label_question(ball, label)
        box = ball.interval()
        whole = box.lower.flatten().double().numpy(), box.upper.flatten().double().numpy()
        others = tuple((case - (case > label), each) for case, each in evidence if case != label)
        return self._keep(name, self._claims.robust(question, arrays, mode, others, whole))

    def label_refuted(self, name: str, ball: LinfBall, label: int, witness: Tensor) -> bool:
        """Write the certificate of a counterexample."""
        question, arrays = _label_question(ball, label)
        return self._keep(name, self._claims.falsified(question, arrays, witness.detach().cpu().numpy()))

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
        return self._keep(name, self._claims.robust({"region": {"kind": "box"}}, arrays, mode, evidence, whole))

    def _keep(self, name: str, content: bytes | None) -> bool:
        if content is not None:
            _write(self.file(name), content)
        return content is not None


def _label_question(ball: LinfBall, label: int) -> tuple[dict[str, Any], Arrays]:
    """Return the question whether a label stays the largest output in a ball, as certificates have it."""
    image: NDArray[np.float32] = ball.x[0].detach().cpu().numpy()
    ends = None if ball.clip is None else [str(exact_fraction(end)) for end in ball.clip]
    return {"label": label, "region": {"kind": "ball", "eps": str(ball.eps), "clip": ends}}, {"center": image}


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
