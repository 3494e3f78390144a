"""What users install: the wheel and the sdist build, hold everything, and work outside this repository."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
VERSION = importlib.metadata.version("surebound")

SMOKE = """
import sys
import torch
import surebound as sb

assert sb.__file__.startswith(sys.prefix), sb.__file__
torch.set_num_threads(1)
x = torch.rand(2, 1, 28, 28)
labels = torch.tensor([3, 7])
model = sb.models.small()
region = sb.LinfBall(x, eps="8/255", clip=(0, 1))
bounds = sb.interval_bounds(model, region)
assert bool((bounds.lower <= model(x)).all()) and bool((model(x) <= bounds.upper).all())
margins = sb.worst_margins(model, region, labels)
assert margins.shape == (2, 10) and margins[0, 3] == 0 and margins[1, 7] == 0
print("bounded")
"""

#: The solver's process finds the package by its folder, wherever that is.
SOLVE = """
import numpy as np
import scipy.sparse
from surebound.solvers import Limits, MathProgram, SolverProcess, find

one = np.ones(1)
program = MathProgram(one, 0.0, scipy.sparse.csr_array([[1.0]]), -one, one / 2, -one, one, one > 2)
with SolverProcess(find("highs")) as solver:
    print(solver.solve(program, Limits(1e-9)).objective)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """The command's standard output; its errors are the test's."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist and the wheel made from it, built from a copy of the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "surebound", source / "surebound", ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, cwd=source)
    return out


@pytest.fixture(scope="module")
def clean_python(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel, borrowing the dependencies installed here."""
    folder = tmp_path_factory.mktemp("clean") / "env"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=dist)
    python = folder / "bin" / "python"
    (wheel,) = dist.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "-qq"]
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=dist)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=dist).strip())
    # A plain path in a .pth file: the packages are found, but not this repository's editable install.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def package_files() -> set[str]:
    """Every file of the package that users need."""
    found = {p.relative_to(ROOT).as_posix() for p in (ROOT / "surebound").rglob("*") if p.is_file()}
    return {name for name in found if "__pycache__" not in name and not name.endswith((".so", ".tmp"))}


def test_the_wheel_holds_every_file(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert wheel.name == f"surebound-{VERSION}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    assert package_files() - names == set()
    assert "surebound/py.typed" in names
    assert {n.split("/")[0] for n in names} == {"surebound", f"surebound-{VERSION}.dist-info"}
    assert f"surebound-{VERSION}.dist-info/licenses/LICENSE" in names


def test_the_sdist_holds_every_file(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert package_files() | {"pyproject.toml", "README.md", "LICENSE"} <= names


def test_the_wheel_bounds_a_network_in_a_clean_environment(clean_python: Path, tmp_path: Path) -> None:
    assert run(clean_python, "-c", SMOKE, cwd=tmp_path) == "bounded\n"


def test_the_wheel_solves_a_linear_program_in_a_clean_environment(clean_python: Path, tmp_path: Path) -> None:
    assert run(clean_python, "-c", SOLVE, cwd=tmp_path) == "0.5\n"


def test_the_command_works_in_a_clean_environment(clean_python: Path, tmp_path: Path) -> None:
    command = clean_python.parent / "surebound"
    assert run(command, "--version", cwd=tmp_path) == f"{VERSION}\n"
    assert "aten.conv2d.default" in run(command, "ops", "conv2d", cwd=tmp_path)


def pins() -> dict[str, str]:
    """Name -> version, as in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line.strip() and not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs), "every line is name==version"
    return {canonicalize_name(name): version for name, version in pairs}


def test_torch_is_pinned_exactly() -> None:
    assert pins()["torch"] == "2.13.0"


def test_every_requirement_is_pinned_to_a_version_it_accepts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name != "surebound":
            assert name in pins(), f"add {name} to constraints.txt (make constraints)"
            assert requirement.specifier.contains(pins()[name]), requirement
