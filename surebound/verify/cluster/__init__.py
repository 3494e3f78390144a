"""Units on the workers of a Dask cluster, an optional extra. The rest of verification knows only an Executor."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from surebound.errors import InputError, MissingExtraError
from surebound.verify.pool import Executor
from surebound.verify.work import Work

if TYPE_CHECKING:
    from distributed import Client


def check_cluster(cluster: str | Client) -> None:
    """Refuse what names no cluster, and say what is missing, before any time is spent."""
    if isinstance(cluster, str):
        local_workers(cluster)
    if importlib.util.find_spec("distributed") is None:
        raise MissingExtraError("distributed", "cluster", "verification on a cluster")


def local_workers(cluster: str) -> int | None:
    """Count the workers that ``local:N`` asks for; None for a scheduler's address.

    >>> local_workers("local:4"), local_workers("tcp://scheduler:8786")
    (4, None)
    """
    scheme, _, rest = cluster.partition(":")
    if scheme == "local" and rest.isdecimal() and int(rest) > 0:
        return int(rest)
    if scheme != "local" and rest.startswith("//") and len(rest) > 2:
        return None
    raise InputError(
        f"cluster {cluster!r} is not understood; give a scheduler's address like tcp://scheduler:8786, "
        "or local:4 for 4 worker processes here"
    )


def cluster_pool(work: Work, cluster: str | Client) -> Executor:
    """Return an executor whose units run on a cluster's workers: an address, ``local:N``, or a connected client."""
    check_cluster(cluster)
    from surebound.verify.cluster.pool import ClusterPool

    given: Any = cluster
    return ClusterPool(work, given)
