"""Run the core of the tests with other versions of PyTorch and Python: `make compat`.

An environment of each is kept in runs/compat, so that a second start is quick. A version that cannot be installed is
said and left out. The core are the tests of what depends on PyTorch's tracer and operators.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
CORE = (
    "tests/graph",
    "tests/rules/test_registry.py",
    "tests/rules/test_traced.py",
    "tests/rules/test_attention.py",
    "tests/bounds/test_interval.py",
)


def environment(python: str, version: str) -> Path | None:
    """The interpreter of an environment with this version and ours installed; None if it cannot be made."""
    tag = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
    ).stdout.strip()
    place = ROOT / "runs" / "compat" / f"python{tag or '?'}-torch{version}"
    inside = place / "bin" / "python"
    if (place / "ready").exists():
        return inside
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("torch==")]
    place.mkdir(parents=True, exist_ok=True)
    (place / "constraints.txt").write_text("\n".join(pins) + "\n")
    install = [str(inside), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    for command in (
        [python, "-m", "venv", str(place)],
        [*install, f"torch=={version}"],
        [*install, "-c", str(place / "constraints.txt"), "setuptools", "pytest", "pytest-timeout", "hypothesis"],
        [*install, "-c", str(place / "constraints.txt"), "--no-build-isolation", "-e", f"{ROOT}[onnx]"],
    ):
        if subprocess.run(command).returncode != 0:
            return None
    (place / "ready").touch()
    return inside


def main(arguments: list[str]) -> int:
    """Run the core in every environment asked for; how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", nargs="*", default=list(VERSIONS))
    parser.add_argument("--python", nargs="*", default=[sys.executable])
    asked = parser.parse_args(arguments)
    failed = 0
    for python in asked.python:
        for version in asked.torch:
            inside = environment(python, version)
            if inside is None:
                print(f"{python}, torch {version}: cannot be installed here", flush=True)
                continue
            single = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            code = subprocess.run([str(inside), "-m", "pytest", "-q", *CORE], cwd=ROOT, env=single).returncode
            print(f"{python}, torch {version}: {'passed' if code == 0 else 'FAILED'}", flush=True)
            failed += code != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
