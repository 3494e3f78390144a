"""One short run, verified at two radii, for every test of reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from surebound.cli import build_app


@pytest.fixture(scope="session")
def surebound() -> Callable[..., Result]:
    """Run a command that has to succeed."""

    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(build_app(), [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
        return result

    return run


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory, surebound: Callable[..., Result]) -> Path:
    """Trained for 150 steps on the digits, and verified: some proved, some broken, some undecided."""
    path = tmp_path_factory.mktemp("runs") / "digits"
    surebound("train", "digits-ibp", "--steps", 150, "--threads", 1, "--out", path)
    surebound("verify", path, "--eps", "1/100,1/10", "--first", 40, "--cascade", "fast", "--jobs", 1)
    return path
