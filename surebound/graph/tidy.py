"""Calls that only undo one another, taken out of a trace: what they move in between would hide whose entry is whose.

nn.MultiheadAttention moves the batch axis to the second place and back; recurrent layers stack their last states, of
which networks take one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from surebound.graph.program import Node, Ref


def tidied(nodes: tuple[Node, ...], output: str, dtypes: Mapping[str, torch.dtype]) -> tuple[tuple[Node, ...], str]:
    """Leave out calls whose value is another one, of the same dtype, and read that instead; also at the output."""
    by_name: dict[str, Node] = {}
    same: dict[str, str] = {}
    kept = []
    for node in nodes:
        node = dataclasses.replace(
            node, args=_renamed(node.args, same), kwargs={key: _renamed(v, same) for key, v in node.kwargs.items()}
        )
        by_name[node.name] = node
        origin = _origin(node, by_name)
        if origin is None or dtypes.get(origin) != dtypes.get(node.name):  # a stack of several dtypes converts
            kept.append(node)
        else:
            same[node.name] = origin
    return tuple(kept), same.get(output, output)


def _renamed(value: Any, same: Mapping[str, str]) -> Any:
    if isinstance(value, Ref):
        return Ref(same.get(value.name, value.name))
    if isinstance(value, (list, tuple)):
        return type(value)(_renamed(item, same) for item in value)
    return value


def _origin(node: Node, by_name: Mapping[str, Node]) -> str | None:
    """Return the name of the value that a call gives back as it was."""
    first = by_name.get(node.args[0].name) if node.args and isinstance(node.args[0], Ref) else None
    if first is None or node.kwargs or first.kwargs:
        return None
    if node.op == first.op == "aten.transpose.int" and node.shape is not None:
        rank = len(node.shape)
        swapped = [{int(axis) % rank for axis in each.args[1:]} for each in (node, first)]
        return str(first.args[0].name) if swapped[0] == swapped[1] else None
    if first.op == "aten.stack.default" and (len(first.args) == 1 or first.args[1] == 0):
        parts = first.args[0]
        if node.op == "aten.select.int" and node.args[1] == 0:
            return _named(parts[int(node.args[2])])
        if node.op == "aten.squeeze.dim" and node.args[1] == 0 and len(parts) == 1:
            return _named(parts[0])
    return None


def _named(part: Any) -> str | None:
    return part.name if isinstance(part, Ref) else None
