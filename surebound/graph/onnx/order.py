"""Values before they were moved, and before a softmax, which over the reals keeps the order of what it normalises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from surebound.graph.onnx.build import Builder, Value
from surebound.graph.program import Node, Ref, resolve

#: Calls that only move entries of their first argument.
_MOVES = frozenset({"aten.reshape.default", "aten.permute.default", "aten.index_select.default", "aten.slice.Tensor"})
_SOFTMAX = frozenset({"aten._softmax.default", "aten._log_softmax.default"})


def before_softmax(builder: Builder, value: Value, groups: Sequence[Sequence[int]]) -> Value | None:
    """Return a value that orders the entries of each group as ``value`` does, without its softmax, if there is one.

    groups: flat places of entries that will be compared with each other. Rounded, two entries of a softmax may be equal
    where what it normalises is not, so this is for questions about reals only.
    """
    chain, node = _moves(builder, value)
    if node is None or node.op not in _SOFTMAX:
        return None
    logits, axis = _source(node), int(node.args[1])
    item = node.shape[1:] if node.shape is not None else ()
    sizes = [1, *(int(n or 1) for n in item)]
    kept = [1 if i == axis else n for i, n in enumerate(sizes)]
    together = torch.arange(torch.Size(kept).numel()).reshape(kept).expand(sizes)  # which softmax an entry belongs to
    found = Value(logits, tuple(sizes[1:]), tuple(sizes[1:]))
    for move in chain:
        rest = resolve(move.args[1:], builder.weights)
        found = builder.call(move.op.removeprefix("aten."), found, *rest)
    flat = _moved(builder, chain, together)
    if any(len(set(flat[list(group)].tolist())) > 1 for group in groups):
        return None
    return Value(found.name, value.item, value.shape)


def unmoved(builder: Builder, value: Value) -> Value:
    """Return the value itself before moves that cancel each other: the same entries in the same order."""
    chain, node = _moves(builder, value)
    if not chain or node is None or node.shape is None:
        return value
    item = tuple(int(n or 1) for n in node.shape[1:])
    numbers = torch.arange(torch.Size(item).numel())
    if not torch.equal(_moved(builder, chain, numbers.reshape(1, *item)), numbers):
        return value
    return replace(value, name=node.name, item=item)


def places_of(builder: Builder, value: Value) -> list[int] | None:
    """Return the places in the flattened input of a value that is nothing but entries of it; None for any other."""
    chain, node = _moves(builder, value)
    first = _source(chain[0]) if chain else value.name
    if node is not None or first != builder.input.name:
        return None
    numbers = torch.arange(torch.Size(builder.shape).numel()).reshape(1, *builder.shape)
    return _moved(builder, chain, numbers).tolist()


def _moves(builder: Builder, value: Value) -> tuple[list[Node], Node | None]:
    """Return the moves that end in a value, in order, and the call whose result they move."""
    chain, node = list[Node](), builder.made.get(value.name)
    while node is not None and node.op in _MOVES:
        chain.append(node)
        node = builder.made.get(_source(node))
    return chain[::-1], node


def _moved(builder: Builder, chain: Sequence[Node], entries: Tensor) -> Tensor:
    """Move entries (1, *item) like values; flat."""
    for move in chain:
        entries = move.target(entries, *resolve(move.args[1:], builder.weights))
    return entries.reshape(-1)


def _source(node: Node) -> str:
    first = node.args[0]
    return first.name if isinstance(first, Ref) else ""
