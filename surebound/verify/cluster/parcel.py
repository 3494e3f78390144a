"""What every worker gets once: the network and the cascade, with everything that is checked before the first unit.

Weights travel as safetensors; the network's class and the cascade's settings are pickled. Workers therefore run
what the client sends: a cluster is for people who trust each other (docs/cluster.md).
"""

from __future__ import annotations

import contextlib
import io
import pickle
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from surebound.errors import VerificationError
from surebound.search.workspace import Workspace
from surebound.verify.cluster.versions import Versions
from surebound.verify.identity import network_digest
from surebound.verify.work import Unit, UnitAnswer, Work


class Refusal(VerificationError):
    """A worker that must not answer: other versions, other weights, a missing solver."""


class Parcel:
    """A Work on its way to the workers. There it is opened at the first unit, and kept for all that follow."""

    def __init__(self, code: bytes, weights: bytes, digest: str, versions: Versions) -> None:
        self._contents = (code, weights, digest, versions)
        self._lock = threading.Lock()  # a worker may have several threads; networks and solvers serve one
        self._opened: tuple[Work, Workspace] | None = None

    @classmethod
    def of(cls, work: Work) -> Parcel:
        """Pack, with what the receiver has to compare."""
        return cls(*pack(work), _digest(work), Versions.here())

    def __reduce__(self) -> tuple[Any, ...]:
        return Parcel, self._contents  # the opened work stays where it is

    def answer(self, pickled: bytes) -> UnitAnswer:
        """Run one unit here, with one thread as everywhere."""
        unit: Unit = pickle.loads(pickled)  # noqa: S301  (from our client, like the parcel itself)
        with self._lock, _one_thread():
            if self._opened is None:
                self._opened = self._open()
            work, workspace = self._opened
            return work.answer(unit, workspace)

    def _open(self) -> tuple[Work, Workspace]:
        code, weights, digest, versions = self._contents
        different = versions.differences(Versions.here())
        if different:
            raise Refusal(different)
        work = unpack(code, weights)
        if _digest(work) != digest:
            raise Refusal(
                "the network that arrived computes something else than the one that was sent; is its class, or what "
                "its code reads, another one on this worker?"
            )
        work.cascade.check()
        workspace = work.workspace()
        weakref.finalize(self, workspace.close)  # solvers end with the parcel
        return work, workspace


def _digest(work: Work) -> str:
    """Tell networks apart by the program as traced, with its weights: code may differ between machines, too."""
    return network_digest(work.model, torch.zeros(1, *work.shape))


def pack(work: Work) -> tuple[bytes, bytes]:
    """Pickle a Work's structure, and write all of its tensors (parameters, buffers, others) as safetensors."""
    import cloudpickle  # comes with distributed; takes classes of a script or notebook, too

    tensors: dict[str, Tensor] = {}
    seen: dict[int, tuple[str, Tensor]] = {}  # one name per object: shared parameters stay shared

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, item: object) -> tuple[str, bool, bool] | None:
            if type(item) not in (Tensor, nn.Parameter) or item.layout != torch.strided:  # type: ignore[attr-defined]
                return None
            tensor: Tensor = item  # type: ignore[assignment]
            # The tensor is kept beside its name: the id of one that is gone could come again.
            name, _ = seen.setdefault(id(tensor), (str(len(seen)), tensor))
            tensors[name] = tensor.detach().cpu().contiguous().clone()
            return name, type(tensor) is nn.Parameter, tensor.requires_grad

    buffer = io.BytesIO()
    Pickler(buffer).dump(work)
    return buffer.getvalue(), save(tensors)


def unpack(code: bytes, weights: bytes) -> Work:
    """Return what ``pack`` packed."""
    stored = load(weights)
    made: dict[str, Tensor] = {}

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, key: tuple[str, bool, bool]) -> Tensor:
            name, parameter, gradient = key
            if name not in made:
                tensor = stored[name]
                made[name] = nn.Parameter(tensor, gradient) if parameter else tensor.requires_grad_(gradient)
            return made[name]

    work = Unpickler(io.BytesIO(code)).load()
    if not isinstance(work, Work):
        raise Refusal(f"a {type(work).__name__} arrived where a network and a cascade were expected")
    return work


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Give torch one thread, as in the local pool; a shared worker gets its own number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
