"""Identity of a network: a digest of the program as traced, which is what bounds are about."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from surebound.graph.program import First, Graph, Program, Ref


def structure(graph: Graph) -> str:
    """Return a digest of the operators, their arguments and the shapes; names and source lines do not count."""
    found = hashlib.sha256()
    for part in _structure(graph):
        found.update(part.encode() + b"\0")
    return found.hexdigest()


def digest(program: Program) -> str:
    """Return a digest of everything that a program computes with: its structure, weights and constants.

    >>> from surebound.graph import trace
    >>> net = torch.nn.LeakyReLU(0.1)
    >>> before = digest(trace(net, torch.zeros(1, 2)))
    >>> net.negative_slope = 0.2
    >>> digest(trace(net, torch.zeros(1, 2))) == before
    False
    """
    found = hashlib.sha256(structure(program.graph).encode())
    values = program.parameters()
    for name in _numbers(program.graph, values):
        found.update(_content(values[name]))
    return found.hexdigest()


def _content(value: Tensor) -> bytes:
    array = value.detach().cpu().contiguous()
    return f"{tuple(array.shape)} {array.dtype}".encode() + array.flatten().view(torch.uint8).numpy().tobytes()


def _numbers(graph: Graph, values: Mapping[str, Any]) -> dict[str, int]:
    """Number values in the order of their first use: the same network may name them otherwise."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        for name in node.refs():
            if name in values:
                found.setdefault(name, len(found))
    if graph.output in values:
        found.setdefault(graph.output, len(found))
    return found


def _structure(graph: Graph) -> Iterator[str]:
    leaves = _numbers(graph, {**graph.parameters, **graph.constants})
    names = {graph.input: "x"} | {name: f"w{i}" for name, i in leaves.items()}
    names |= {node.name: f"v{i}" for i, node in enumerate(graph.nodes)}
    yield f"{graph.input_shape} {graph.dtype}"
    for node in graph.nodes:
        kept = "first of " if isinstance(node.target, First) else ""
        kwargs = sorted(node.kwargs.items())
        yield f"{kept}{node.op} {_text(node.args, names)} {_text(kwargs, names)} {node.shape} {node.by_example}"
    yield names[graph.output]


def _text(value: Any, names: Mapping[str, str]) -> str:
    if isinstance(value, Ref):
        return names[value.name]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(item, names) for item in value)}]"
    return f"{type(value).__name__} {value!r}"
