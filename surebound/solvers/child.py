"""The solver's side: a process that reads problems, solves them one by one, and dies with its parent.

It needs no torch, and starts without it: nothing that this module imports may import it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from surebound.solvers.children import die_with_parent
from surebound.solvers.outcome import SolverOutcome, SolverStatus
from surebound.solvers.problem import Limits, MathProgram
from surebound.solvers.wire import LENGTH_BYTES, decode_request, encode_outcome, frame

Solve = Callable[[MathProgram, Limits], SolverOutcome]


def main(backend: str) -> None:
    """Answer requests until the input ends; ``backend`` is a module with ``solve(problem, limits)``."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a solver that prints must not write into the answers
    solve: Solve = importlib.import_module(backend).solve
    answers.write(frame(b"ready"))
    answers.flush()
    while (payload := _read(sys.stdin.buffer)) is not None:
        answers.write(frame(encode_outcome(_answer(solve, payload))))
        answers.flush()


def _answer(solve: Solve, payload: bytes) -> SolverOutcome:
    problem, limits = decode_request(payload)
    try:
        with _memory_limit(limits.memory_bytes):
            return solve(problem, limits)
    except MemoryError:
        return SolverOutcome(SolverStatus.MEMORY_LIMIT, detail="out of memory")
    except Exception as error:  # whatever a backend raises is an answer: not a verdict, but no crash either
        return SolverOutcome(SolverStatus.UNKNOWN, detail=f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _memory_limit(allowance: int | None) -> Iterator[None]:
    """Let the process grow by ``allowance`` bytes beyond what it has mapped now, where /proc tells that."""
    if allowance is None or not Path("/proc/self/statm").exists():
        yield
        return
    import resource

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + allowance, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    size = int.from_bytes(head, "big")
    payload = stream.read(size)
    return payload if len(payload) == size else None
