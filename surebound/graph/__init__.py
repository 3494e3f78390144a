"""Networks as Programs: ``program_of(model, x)`` traces once and remembers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from surebound.graph.chosen import choose, refuse_unreadable
from surebound.graph.fingerprint import Fingerprint
from surebound.graph.fit import forward
from surebound.graph.identity import digest, structure
from surebound.graph.layout import order_of
from surebound.graph.onnx.build import ImportedNetwork
from surebound.graph.program import Graph, Node, Program, Ref, once_per_graph
from surebound.graph.trace import check_trace, trace

__all__ = [
    "Graph",
    "ImportedNetwork",
    "Node",
    "Program",
    "Ref",
    "choose",
    "digest",
    "forget",
    "forward",
    "once_per_graph",
    "program_of",
    "trace",
]

_Key = tuple[tuple[int, ...], torch.dtype]
_Batch = tuple[int, tuple[int, ...] | None]  # its size, and its order in memory


@dataclass
class _Known:
    """The graphs of a module as it was when its fingerprint was taken, and the batches they were checked at."""

    seen: Fingerprint
    graphs: dict[_Key, Graph] = field(default_factory=dict)
    batches: dict[_Key, set[_Batch]] = field(default_factory=dict)


_known: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()
_tracing = threading.RLock()  # torch.export and a module's training flags are shared by all threads


def program_of(model: nn.Module | Program, x: Tensor) -> Program:
    """Return the program of a network for inputs like ``x``: traced at the first call, reused while nothing changes.

    Parameters are always the module's current ones. Whatever else tracing could see (attributes, hooks, submodules,
    classes) is compared at every call, and the network is traced anew after a change; ``forget(model)`` is for
    changes that cannot be seen, such as a global variable that forward() reads. At every batch size that is asked
    for, and every order of the inputs in memory, the program is compared with the module once.
    """
    if isinstance(model, Program):
        return model
    if isinstance(model, ImportedNetwork):
        return model.program
    if not isinstance(model, nn.Module):
        return trace(model, x)  # which says what is wrong
    if model not in _known:
        refuse_unreadable(model)
    known, seen = _known.get(model), Fingerprint(model)
    if known is not None and known.seen == seen:
        for key in _keys(x):
            if key in known.graphs and (len(x), order_of(x)) in known.batches[key]:
                return Program(known.graphs[key], model)
    with _tracing:
        return _remembered(model, x)


def _keys(x: Tensor) -> tuple[_Key, _Key]:
    return (tuple(x.shape[1:]), x.dtype), (tuple(x.shape), x.dtype)


def _remembered(model: nn.Module, x: Tensor) -> Program:
    """Trace, or find what another thread has traced; check it at this batch size."""
    known, stale = _known.get(model), None
    if known is not None and known.seen != Fingerprint(model):
        known, stale = None, known
    for key in _keys(x):
        if known is not None and key in known.graphs:
            program = Program(known.graphs[key], model)
            check_trace(program, model, x, (len(x),))
            known.batches[key].add((len(x), order_of(x)))
            return program
    program = trace(model, x)
    key = _keys(x)[0 if program.graph.input_shape[0] is None else 1]
    before = None if stale is None else stale.graphs.get(key)
    if before is not None and _same(before, program.graph):
        program = Program(before, model)  # what is known of it stays known
    if known is None:  # after the trace: a first call may fill caches of the module's own
        known = _known[model] = _Known(Fingerprint(model))
    known.graphs[key] = program.graph
    known.batches[key] = {(len(x), order_of(x))}
    return program


def _same(one: Graph, other: Graph) -> bool:
    """Do two graphs compute the same with the same module? Constants may differ in their values."""
    return structure(one) == structure(other) and one.parameters == other.parameters and not one.constants


def forget(model: nn.Module) -> None:
    """Trace this network anew next time: needed after a change that its attributes, hooks and classes do not show.

    >>> forget(nn.Linear(2, 2))
    """
    _known.pop(model, None)
