"""Tests run in a fork of a process that has loaded what they import, except for the package and the tests themselves.

Most of a short run of tests is the loading of torch and of its tracer: it is done once.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
from pathlib import Path

from tests.mutants.fault import ROOT

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "torch.export", "torch._dynamo", "scipy.optimize", "sympy"])
LOG = "log.txt"
PASSED, FAILED, STOPPED = 100, 101, 102  # a process that ends otherwise did not get so far


def answer(folder: Path, tests: tuple[str, ...], seconds: float) -> tuple[str, str]:
    """Run tests in a copy of the code: "passed", "failed" or "late", and the first test that failed."""
    process = FORKS.Process(target=_run, args=(folder, tests))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return "late", ""
    text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
    if process.exitcode not in (PASSED, FAILED, STOPPED):
        raise RuntimeError(f"{tests}: ended with {process.exitcode}: {text[-800:]}")
    first = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    return ("passed" if process.exitcode == PASSED else "failed"), first[1] if first else ""


def _run(folder: Path, tests: tuple[str, ...]) -> None:
    os.setsid()
    os.chdir(folder)
    with (folder / LOG).open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    for name in [each for each in sys.modules if each.partition(".")[0] in ("tests", "surebound")]:
        del sys.modules[name]
    sys.path[:] = [str(folder), *(each for each in sys.path if Path(each).resolve() != ROOT)]
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1")
    import pytest

    code = int(pytest.main(["-x", "-q", "-rfE", "--tb=line", "-p", "no:xdist", "-p", "no:cacheprovider", *tests]))
    sys.stdout.flush()
    os._exit(100 + code)
