"""The verifiers, each in a virtual environment of its own, and how each is asked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: Name of the environment -> what is installed. PyTorch is pinned: a looser range can pull gigabytes of CUDA.
PACKAGES = {
    "vibecheck": ("torch==2.13.0", "vibecheck-nn==1.1.0"),
    "neuralsat": ("torch==2.13.0", "neuralsat==0.2.17"),
}
_LAUNCHER = Path(__file__).parent / "start_neuralsat.py"


@dataclass(frozen=True)
class Question:
    """Files, the seconds a tool is told that it has, and where it is to write its answer."""

    onnx: Path
    vnnlib: Path
    seconds: float
    answer: Path


@dataclass(frozen=True)
class Tool:
    name: str
    version: str
    command: Callable[[Path, Question], list[str]]  # the folder of environments, the question


def _surebound(folder: Path, q: Question) -> list[str]:
    return [
        sys.executable, "-m", "surebound", "verify", "--onnx", str(q.onnx), "--vnnlib", str(q.vnnlib),
        "--timeout", f"{q.seconds:g}", "--result-file", str(q.answer),
    ]  # fmt: skip


def _vibecheck(folder: Path, q: Question) -> list[str]:
    return [
        str(folder / "vibecheck/bin/vibecheck"), "--net", str(q.onnx), "--spec", str(q.vnnlib),
        "--timeout", f"{q.seconds:g}", "--device", "cpu", "--results-file", str(q.answer),
    ]  # fmt: skip


def _neuralsat(folder: Path, q: Question) -> list[str]:
    return [
        str(folder / "neuralsat/bin/python"), str(_LAUNCHER), "--net", str(q.onnx), "--spec", str(q.vnnlib),
        "--timeout", f"{q.seconds:g}", "--device", "cpu", "--verbosity", "0",
        "--result_file", str(q.answer), "--export_cex",
    ]  # fmt: skip


def tools(own_version: str) -> tuple[Tool, ...]:
    """Everybody who is asked."""
    return (
        Tool("surebound", own_version, _surebound),
        Tool("vibecheck-nn", "1.1.0", _vibecheck),
        Tool("neuralsat", "0.2.17", _neuralsat),
    )


def setup(folder: Path) -> None:
    """Make the environments; one that is there is completed."""
    for name, packages in PACKAGES.items():
        place = folder / name
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([str(place / "bin/python"), "-m", "pip", "install", "-q", *packages], check=True)
