"""The executor of a cluster: one unit per worker at a time, answers as they come, one writer (whoever asks)."""

from __future__ import annotations

import contextlib
import operator
import pickle
import queue
import time
import uuid
from typing import Any

from distributed import Client
from distributed.scheduler import KilledWorker

from surebound.errors import VerificationError
from surebound.verify.cluster.connect import connected
from surebound.verify.cluster.parcel import Parcel, Refusal
from surebound.verify.pool import Executor
from surebound.verify.work import Unit, UnitAnswer, Work

PATIENCE_SECONDS = 60.0  # how long to wait for a worker, or the scheduler, to come back
_LOOK_SECONDS = 1.0
_MOST_AGAIN = 10  # in a row


class ClusterPool(Executor):
    """Units on the workers of a Dask cluster. The network goes to each worker once.

    A worker that dies loses nothing: the scheduler gives its unit to another, and only a unit that several
    workers died of fails. Workers may come and go while units are under way.
    """

    def __init__(self, work: Work, cluster: str | Client) -> None:
        self._stack = contextlib.ExitStack()
        self._run = uuid.uuid4().hex[:8]
        self._count = 0
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._under_way: dict[str, tuple[Unit, str, Any]] = {}  # by key: unit, worker asked, future
        self._again = 0
        try:
            self._client = self._stack.enter_context(connected(cluster))
            self._parcel = Parcel.of(work)
            self._scattered = self._scatter()
            self._look()
        except BaseException:
            self._stack.close()
            raise

    @property
    def free(self) -> int:
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._look()
        # Without workers one unit may wait for them: `next` is where patience ends.
        return max(len(self._workers), 1) - len(self._under_way)

    def submit(self, unit: Unit) -> None:
        asked = [worker for _, worker, _ in self._under_way.values()]
        worker = min(self._workers, key=asked.count, default="")
        self._count += 1
        # Nothing of ours by name, the unit as bytes: the scheduler, which takes tasks apart, needs only Dask.
        future = self._client.submit(
            operator.methodcaller("answer", pickle.dumps(unit)),
            self._scattered,
            key=f"surebound-{self._run}-{self._count}",
            workers=[worker] if worker else None,
            allow_other_workers=True,  # when this one dies
            pure=False,
        )
        self._under_way[future.key] = (unit, worker, future)
        future.add_done_callback(self._done.put)

    def next(self) -> tuple[Unit, UnitAnswer]:
        while True:
            future = self._wait()
            if future.key not in self._under_way:
                continue
            unit, _, _ = self._under_way.pop(future.key)
            if future.status in ("cancelled", "lost"):
                self._resubmit(unit)
                continue
            return unit, self._answer(future)

    def close(self) -> None:
        for _, _, future in self._under_way.values():
            # The scheduler may be gone; nothing depends on these any more.
            with contextlib.suppress(Exception):
                future.release()
        self._under_way.clear()
        self._stack.close()

    def _scatter(self) -> Any:
        try:
            return self._client.scatter(self._parcel, broadcast=True, hash=False)
        except (OSError, TimeoutError) as error:
            raise VerificationError(f"the network could not be sent to the workers: {error}") from error

    def _look(self) -> None:
        """Look who is there now."""
        # No answer: what was known stays, and _wait loses patience if need be.
        with contextlib.suppress(OSError):
            self._workers: tuple[str, ...] = tuple(self._client.nthreads())
        self._looked = time.monotonic()

    def _wait(self) -> Any:
        """Wait for the next future that is done, however; raise if nobody is left to finish one."""
        alone_since: float | None = None
        while True:
            with contextlib.suppress(queue.Empty):
                return self._done.get(timeout=_LOOK_SECONDS)
            self._look()
            if self._workers and self._client.status == "running":
                alone_since = None
                continue
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since >= PATIENCE_SECONDS:
                raise VerificationError(self._lonely())

    def _lonely(self) -> str:
        what = "has no workers any more" if self._client.status == "running" else "does not answer any more"
        return (
            f"the cluster {what} ({PATIENCE_SECONDS:g} s). What was decided is kept: "
            "with the workers back, the same call goes on where it was"
        )

    def _resubmit(self, unit: Unit) -> None:
        """Send unit and network again: the cluster forgot them, as when every worker that had the network died."""
        self._again += 1
        if self._again > _MOST_AGAIN:
            raise VerificationError("the cluster cancels units again and again; is somebody restarting it?")
        if self._client.status != "running":
            raise VerificationError(self._lonely())
        try:
            self._client.wait_for_workers(1, timeout=PATIENCE_SECONDS)
        except TimeoutError:
            raise VerificationError(self._lonely()) from None
        self._scattered = self._scatter()
        self._look()
        self.submit(unit)

    def _answer(self, future: Any) -> UnitAnswer:
        try:
            answer: UnitAnswer = future.result()
        except KilledWorker as error:
            lines = str(error).strip().splitlines()
            return UnitAnswer(failure=f"workers died of it: {lines[0] if lines else 'KilledWorker'}")
        except Refusal as error:
            raise VerificationError(f"a worker refused the work: {error}") from error
        except Exception as error:
            # Nothing a stage did: those are answers. The worker could not begin at all.
            raise VerificationError(
                f"a worker could not run the network ({type(error).__name__}: {error}). Its class, and the "
                "cascade's stages, must be importable on the workers"
            ) from error
        self._again = 0
        return answer
