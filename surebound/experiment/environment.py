"""What a result depends on besides its configuration: versions, commit, machine class."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

PACKAGES = ("surebound", "torch", "numpy", "safetensors", "scipy", "scikit-learn")


def describe_environment() -> dict[str, object]:
    """Plain values for a run's record; nothing in it names a person or a host."""
    return {
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "cuda": torch.version.cuda,
        "command": " ".join(Path(a).name if i == 0 else a for i, a in enumerate(sys.argv)),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree this package runs from, with `+` when files differ from it."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        command = ("git", "-C", str(here), *words)
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
