"""Who runs the units: this process, or a pool of local ones. A dead worker costs what it had in hand, no more."""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
import dataclasses
import multiprocessing.connection
import os
import pickle
import signal
import sys
import types
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch
import torch.multiprocessing

from surebound.errors import VerificationError
from surebound.solvers.children import die_with_parent, without_interrupts
from surebound.verify.work import Unit, UnitAnswer, Work

_START_FAILURES = 3


class Executor(abc.ABC):
    """Takes units and gives answers back, in any order. Use as a context manager."""

    @property
    @abc.abstractmethod
    def free(self) -> int:
        """How many more units it would take now."""

    @abc.abstractmethod
    def submit(self, unit: Unit) -> None:
        """Take a unit; only while ``free`` is positive."""

    @abc.abstractmethod
    def next(self) -> tuple[Unit, UnitAnswer]:
        """Wait for the next answer; only while units are under way."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop everything, finished or not."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def defined_in_script(work: Work) -> bool:
    """Say whether a class of the network or of a stage is defined in the script that is running."""
    parts = (*work.model.modules(), *work.cascade.stages)
    return any(type(part).__module__ == "__main__" for part in parts)


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Start processes that do not run the script again: in a module without a file there is nothing to run."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


class Inline(Executor):
    """Runs units in this process, one at a time: no start-up cost, no protection from crashes."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._workspace = work.workspace()
        self._units: collections.deque[Unit] = collections.deque()

    @property
    def free(self) -> int:
        return 1 - len(self._units)

    def submit(self, unit: Unit) -> None:
        self._units.append(unit)

    def next(self) -> tuple[Unit, UnitAnswer]:
        unit = self._units.popleft()
        return unit, self._work.answer(unit, self._workspace)

    def close(self) -> None:
        self._workspace.close()


@dataclasses.dataclass(eq=False)
class _Worker:
    """A process and our end of its pipe; one pipe each, so that a dying worker can garble nobody else's."""

    process: Any
    pipe: Connection
    ready: bool = False
    unit: Unit | None = None


class ProcessPool(Executor):
    """Worker processes with one thread each and the weights in shared memory.

    Workers are spawned, not forked: torch's threads do not survive a fork. A script whose own classes they need
    must therefore guard its entry with ``if __name__ == "__main__":``; others are not run again.
    """

    def __init__(self, work: Work, jobs: int) -> None:
        self._context = torch.multiprocessing.get_context("spawn")
        self._start_failures = 0
        self._failed: collections.deque[tuple[Unit, UnitAnswer]] = collections.deque()
        self._work = dataclasses.replace(work, model=copy.deepcopy(work.model).share_memory())
        self._workers = [self._spawn() for _ in range(jobs)]

    @property
    def free(self) -> int:
        return sum(worker.unit is None for worker in self._workers)

    def submit(self, unit: Unit) -> None:
        worker = next(worker for worker in self._workers if worker.unit is None)
        worker.unit = unit
        if worker.ready:
            self._send(worker)

    def next(self) -> tuple[Unit, UnitAnswer]:
        while not self._failed:
            pipes = {worker.pipe: worker for worker in self._workers}
            for pipe in multiprocessing.connection.wait(list(pipes)):
                answer = self._receive(pipes[pipe])  # type: ignore[index]
                if answer is not None:
                    return answer
        return self._failed.popleft()

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers = []

    def _spawn(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(self._work, theirs), daemon=True)
        needed = contextlib.nullcontext() if defined_in_script(self._work) else _without_script()
        with without_interrupts(), needed:  # Ctrl-C is ours, also while it imports
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def _send(self, worker: _Worker) -> None:
        with contextlib.suppress(OSError):  # it died idle: its pipe is readable now, and _receive buries it
            _put(worker.pipe, worker.unit)

    def _receive(self, worker: _Worker) -> tuple[Unit, UnitAnswer] | None:
        try:
            answer = _get(worker.pipe)
        except (EOFError, OSError):
            self._bury(worker)
            return None
        if not worker.ready:
            worker.ready = True
            self._start_failures = 0
            if worker.unit is not None:
                self._send(worker)
            return None
        unit, worker.unit = worker.unit, None
        return (unit, answer) if unit is not None else None

    def _bury(self, worker: _Worker) -> None:
        """Replace a dead worker; its unit failed, unless it never got to see it."""
        worker.process.join()
        worker.pipe.close()
        code = worker.process.exitcode or 0
        reason = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        if not worker.ready:
            self._start_failures += 1
            if self._start_failures >= _START_FAILURES:
                raise VerificationError(
                    f"worker processes end before they start ({reason}). A script needs its entry under "
                    "`if __name__ == '__main__':`, and the network's class must be importable; "
                    "or run in this process with jobs=None."
                )
        replacement = self._spawn()
        if worker.unit is not None and worker.ready:
            self._failed.append((worker.unit, UnitAnswer(failure=f"the worker process ended: {reason}")))
        else:
            replacement.unit = worker.unit
        self._workers[self._workers.index(worker)] = replacement


def _put(pipe: Connection, message: object) -> None:
    """Send by value. (Connection.send would pass tensors through shared memory, which dies with the sender.)"""
    pipe.send_bytes(pickle.dumps(message))


def _get(pipe: Connection) -> Any:
    return pickle.loads(pipe.recv_bytes())  # noqa: S301  (from our own worker, never from outside)


def _serve(work: Work, pipe: Connection) -> None:
    """Answer unit after unit until the pipe closes: a worker has one thread and one workspace."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    die_with_parent()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    with work.workspace() as workspace:
        _put(pipe, "ready")
        while True:
            try:
                unit = _get(pipe)
            except (EOFError, OSError):
                return
            _put(pipe, work.answer(unit, workspace))
