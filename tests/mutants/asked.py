"""Tests run in a fork of a process that has loaded what they import, except for the package and the tests themselves.

Most of a short run of tests is the loading of torch and of its tracer: it is done once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.mutants.fault import ROOT

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "torch.export", "torch._dynamo", "scipy.optimize", "sympy"])
LOG, FIRST = "log.txt", "first.txt"
PASSED, FAILED, STOPPED = 100, 101, 102  # a process that ends otherwise did not get so far


def answer(folder: Path, tests: tuple[str, ...], seconds: float) -> tuple[str, str]:
    """Run tests in a copy of the code: "passed", "failed", "late" or "unclear", and the first test that failed.

    A process that a signal ended, as a fault in a compiled pass may, failed. "unclear": no test was run.
    """
    process = FORKS.Process(target=_run, args=(folder, tests))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return "late", ""
    first = (folder / FIRST).read_text(encoding="utf-8") if (folder / FIRST).exists() else ""
    if process.exitcode not in (PASSED, FAILED, STOPPED) and process.exitcode >= 0 and not first:
        text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
        print(f"{tests}: ended with {process.exitcode}: {text[-800:]}", flush=True)
        return "unclear", ""
    return ("passed" if process.exitcode == PASSED else "failed"), first


class _First:
    """Notes the first test that fails."""

    def __init__(self) -> None:
        self._path = Path(FIRST).resolve()  # tests may change the directory

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._note(report)

    def pytest_collectreport(self, report: Any) -> None:
        self._note(report)

    def _note(self, report: Any) -> None:
        if report.failed and not self._path.exists():
            self._path.write_text(report.nodeid, encoding="utf-8")


def _run(folder: Path, tests: tuple[str, ...]) -> None:
    os.setsid()
    os.chdir(folder)
    Path(FIRST).unlink(missing_ok=True)
    with (folder / LOG).open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    for name in [each for each in sys.modules if each.partition(".")[0] in ("tests", "surebound")]:
        del sys.modules[name]
    sys.path[:] = [str(folder), *(each for each in sys.path if Path(each).resolve() != ROOT)]
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1")
    import pytest

    options = ["-x", "-q", "-rfE", "--tb=line", "-p", "no:xdist", "-p", "no:cacheprovider"]
    code = int(pytest.main([*options, *tests], plugins=[_First()]))
    sys.stdout.flush()
    os._exit(100 + code)
