"""Reaching a cluster: a scheduler somewhere, or processes of this machine for a try; refusing one that does not fit."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

from distributed import Client, LocalCluster

from surebound.errors import VerificationError, first_line
from surebound.solvers.children import without_interrupts
from surebound.verify.cluster import local_workers
from surebound.verify.cluster.versions import Versions

CONNECT_SECONDS = 5.0
FIRST_WORKER_SECONDS = 30.0


@contextlib.contextmanager
def connected(cluster: str | Client) -> Iterator[Client]:
    """Connect a client with at least one worker, all with our versions. A client that was given is left open."""
    with contextlib.ExitStack() as stack:
        client = cluster if isinstance(cluster, Client) else stack.enter_context(_client(cluster))
        try:
            client.wait_for_workers(1, timeout=FIRST_WORKER_SECONDS)
        except TimeoutError:
            address = client.scheduler.address
            raise VerificationError(
                f"the scheduler at {address} has no workers; start some: dask worker {address} --nthreads 1"
            ) from None
        _check_versions(client)
        yield client


@contextlib.contextmanager
def _client(cluster: str) -> Iterator[Client]:
    count = local_workers(cluster)
    with contextlib.ExitStack() as stack:
        where: str | LocalCluster = cluster
        if count is not None:
            where = stack.enter_context(_local(count))
        try:
            client = Client(where, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError; ValueError: no such protocol
            raise VerificationError(
                f"no scheduler answers at {cluster} within {CONNECT_SECONDS:g} s ({first_line(error)}). "
                "Start one with: dask scheduler; or try local:2"
            ) from None
        yield stack.enter_context(client)


@contextlib.contextmanager
def _local(count: int) -> Iterator[LocalCluster]:
    """Worker processes on this machine. They do not hear Ctrl-C: it is the client's business."""
    with without_interrupts():
        cluster = LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",  # None would listen to every interface, on one port for all runs
            worker_dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            memory_limit=0,
            silence_logs=logging.CRITICAL,
        )
    with cluster:
        yield cluster


def _check_versions(client: Client) -> None:
    wrong = list(_complaints(client.run(Versions.here, on_error="return")))
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise VerificationError(
            "client and workers must run the same surebound and torch. " + " | ".join(wrong[:3]) + more + ". "
            "Install the same versions everywhere: pip install 'surebound[cluster]' with one constraints file"
        )


def _ours() -> Versions:
    return Versions.here()


def _complaints(found: Mapping[str, object]) -> Iterator[str]:
    ours = _ours()
    for address, theirs in sorted(found.items()):
        if not isinstance(theirs, Versions):
            yield f"{address}: {first_line(theirs)}"
        elif ours.differences(theirs):
            yield f"{address}: {ours.differences(theirs)}"
