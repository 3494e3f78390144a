"""A solver in a process of its own, which may crash, hang or eat memory without harm to anybody else."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from surebound.errors import SolverError
from surebound.solvers.outcome import SolverOutcome, SolverStatus
from surebound.solvers.problem import Limits, MathProgram
from surebound.solvers.wire import LENGTH_BYTES, decode_outcome, encode_request, frame

# Start the child without the package's __init__, which imports torch: 0.3 s instead of 2, and 200 MB less.
_BOOT = """
import sys, types
package = sys.modules["surebound"] = types.ModuleType("surebound")
package.__path__ = [sys.argv[2]]
from surebound.solvers.child import main
main(sys.argv[1])
"""
_PACKAGE = Path(__file__).resolve().parents[1]
_START_SECONDS = 120.0
# Solvers look at the clock between nodes: give them a while to notice before they are killed.
_GRACE_SECONDS, _GRACE_SHARE, _MOST_GRACE = 2.0, 0.1, 10.0


def grace(seconds: float) -> float:
    """Return the seconds after its time limit at which a child is killed that has not answered.

    >>> grace(1.0), grace(60.0), grace(600.0)
    (2.0, 6.0, 10.0)
    """
    return min(max(_GRACE_SECONDS, _GRACE_SHARE * seconds), _MOST_GRACE)


class SolverProcess:
    """One child process that solves problem after problem; started when first needed, again after a crash.

    ``solve`` always returns a SolverOutcome: a crash is CRASHED, a child killed from outside KILLED, one that we
    had to kill at the time limit TIME_LIMIT. Only a backend that cannot be started raises SolverError.

    A solver's own limit is a request: HiGHS was seen to take 69 s for 15. The limit that counts is the parent's, for
    sending the problem, solving it and reading the answer together (``grace`` later). Starting a child, once and after
    a crash, is no problem's time.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> SolverProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._process.pid if self._process is not None else None

    def solve(self, problem: MathProgram, limits: Limits) -> SolverOutcome:
        """Send a problem to the child and wait for its answer, or for the time limit."""
        process = self._process or self._start()
        deadline = time.monotonic() + limits.seconds + grace(limits.seconds)
        try:
            self._send(process, encode_request(problem, limits), deadline)
            payload = self._receive(process, deadline)
        except TimeoutError:
            self.close()
            return SolverOutcome(SolverStatus.TIME_LIMIT, detail="killed: it did not stop at the time limit")
        except (EOFError, OSError):
            return self._autopsy(process)
        return decode_outcome(payload)

    def close(self) -> None:
        """Kill the child, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # unsent bytes of a dead child
                        stream.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        process = self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, self._backend, str(_PACKAGE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        try:
            self._receive(process, time.monotonic() + _START_SECONDS)
        except (EOFError, OSError, TimeoutError):
            said = self._said()
            self.close()
            raise SolverError(
                f"the solver {self._backend!r} could not be started: {said or 'no answer'}. "
                "Is its package installed? HiGHS (highspy) comes with surebound."
            ) from None
        return process

    def _send(self, process: subprocess.Popen[bytes], payload: bytes, deadline: float) -> None:
        if process.stdin is None:
            raise EOFError
        _write(process.stdin.fileno(), frame(payload), deadline)

    def _receive(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        if process.stdout is None:
            raise EOFError
        descriptor = process.stdout.fileno()
        head = _read(descriptor, LENGTH_BYTES, deadline)
        return _read(descriptor, int.from_bytes(head, "big"), deadline)

    def _autopsy(self, process: subprocess.Popen[bytes]) -> SolverOutcome:
        code = process.wait()
        said = self._said()
        self.close()
        if "bad_alloc" in said or "MemoryError" in said:
            return SolverOutcome(SolverStatus.MEMORY_LIMIT, detail=said)
        if code == -signal.SIGKILL:
            return SolverOutcome(SolverStatus.KILLED, detail="killed by signal 9 (out of memory, or somebody)")
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return SolverOutcome(SolverStatus.CRASHED, detail=f"{ended} {said}".strip())

    def _said(self) -> str:
        """Return the last line that the child wrote to its standard error."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def _write(descriptor: int, payload: bytes, deadline: float) -> None:
    """Write all of it before the deadline: a child that does not read must not hold us."""
    left = memoryview(payload)
    os.set_blocking(descriptor, False)
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_WRITE)
        while left:
            _wait(selector, deadline)
            left = left[os.write(descriptor, left[: 1 << 20]) :]


def _read(descriptor: int, size: int, deadline: float) -> bytes:
    """Exactly ``size`` bytes before the deadline; raises EOFError when the other side is gone."""
    parts, missing = [], size
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while missing:
            _wait(selector, deadline)
            part = os.read(descriptor, min(missing, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            missing -= len(part)
    return b"".join(parts)


def _wait(selector: selectors.BaseSelector, deadline: float) -> None:
    """Until the other side is ready; raises TimeoutError at the deadline."""
    left = deadline - time.monotonic()
    if left <= 0 or not selector.select(None if math.isinf(left) else left):
        raise TimeoutError
