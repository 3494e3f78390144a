"""One short run, verified at two radii, for every test of reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import surebound as sb
from surebound.cli import build_app
from surebound.experiment.target import load
from surebound.report.explore.server import Explorer, start
from surebound.report.explore.subject import Subject, open_subject


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


@pytest.fixture(scope="session")
def certified(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the whole cascade on twelve images at two radii, with certificates; some rest on branch and bound."""
    path = tmp_path_factory.mktemp("certified")
    images, labels = sb.data.load("digits").test.batch(torch.arange(40))
    balls = [sb.LinfBall(images, eps, clip=(0, 1)) for eps in ("1/50", "1/12")]
    chosen = (0, 1, 2, 3, 4, 5, 6, 7, 9, 24, 35, 39)
    sb.verify(load(run_dir), balls, labels, indices=chosen, timeout=5, out=path, certificates=path / "certificates")
    return path


@pytest.fixture(scope="module")
def subject(certified: Path, run_dir: Path) -> Subject:
    """The certified results, with network and images, as the explorer opens them."""
    return open_subject(certified, network=str(run_dir), data="digits")


@pytest.fixture(scope="module")
def explorer(subject: Subject) -> Iterator[Explorer]:
    """The explorer's server, in a thread."""
    made = start(subject)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()
