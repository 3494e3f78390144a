"""Networks as Programs: ``program_of(model, x)`` traces once and remembers."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from surebound.graph.fit import forward
from surebound.graph.onnx.build import ImportedNetwork
from surebound.graph.program import Graph, Node, Program, Ref, once_per_graph
from surebound.graph.trace import trace

__all__ = [
    "Graph",
    "ImportedNetwork",
    "Node",
    "Program",
    "Ref",
    "forward",
    "once_per_graph",
    "program_of",
    "trace",
]

_Key = tuple[tuple[int, ...], torch.dtype]
_graphs: WeakKeyDictionary[nn.Module, dict[_Key, Graph]] = WeakKeyDictionary()


def program_of(model: nn.Module | Program, x: Tensor) -> Program:
    """The program of a network for inputs like ``x``: traced at the first call, reused after.

    Parameters are always the module's current ones. After changing the *structure* of a module, call
    ``forget(model)``.
    """
    if isinstance(model, Program):
        return model
    if isinstance(model, ImportedNetwork):
        return model.program
    known: dict[Any, Graph] = _graphs.setdefault(model, {}) if isinstance(model, nn.Module) else {}
    for key in ((tuple(x.shape[1:]), x.dtype), (tuple(x.shape), x.dtype)):
        if key in known:
            return Program(known[key], model)
    program = trace(model, x)
    free = program.graph.input_shape[0] is None
    known[(tuple(x.shape[1:]) if free else tuple(x.shape), x.dtype)] = program.graph
    return program


def forget(model: nn.Module) -> None:
    """Trace this network anew next time."""
    _graphs.pop(model, None)
