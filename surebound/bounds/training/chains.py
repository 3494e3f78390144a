"""The calls of a program that the training pass runs as one block: weighted layer, BatchNorm, ReLU, flatten."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from surebound.graph import Graph, Node
from surebound.graph.program import Ref, once_per_graph
from surebound.graph.walk import Steps, freeing
from surebound.rules import find, layer_of


@dataclass(frozen=True)
class Chain:
    """Calls that feed each other and no other call, in order; each kind at most once."""

    calls: tuple[Node, ...]
    layer: Node | None = None
    norm: Node | None = None
    relu: Node | None = None
    flatten: Node | None = None

    @property
    def last(self) -> Node:
        return self.calls[-1]


@dataclass(frozen=True)
class PassPlan:
    """The calls of a training pass: blocks, and the calls between them."""

    blocks: Mapping[str, Chain]  # by name of the last call
    steps: Steps  # a block stands where its last call does, and reads what all of them read


@once_per_graph
def _plans(graph: Graph) -> dict[tuple[frozenset[str], frozenset[str], bool, bool], PassPlan]:
    """Return the plans made for a graph so far: every step of a training asks for the same."""
    return {}


def plan(graph: Graph, wanted: frozenset[str], outside: frozenset[str], *, norms: bool, blocks: bool) -> PassPlan:
    """Plan a pass that keeps the values ``wanted`` and has no block among the calls ``outside``; see ``chains``.

    blocks: run blocks at all?
    """
    known, question = _plans(graph), (wanted, outside, norms, blocks)
    if question not in known:
        found = chains(graph, wanted, norms=norms) if blocks else ()
        last = {chain.last.name: chain for chain in found if chain.last.name not in outside}
        inside = {node.name for chain in last.values() for node in chain.calls} - set(last)

        def reads(node: Node) -> Iterator[str]:
            for call in last[node.name].calls if node.name in last else (node,):
                yield from call.refs()

        calls = graph.calls(lambda node: node.name not in inside)
        known[question] = PassPlan(last, freeing(calls, wanted | {graph.output}, reads))
    return known[question]


def chains(graph: Graph, wanted: Collection[str], *, norms: bool) -> tuple[Chain, ...]:
    """Find the blocks of a graph; none goes across a value that is wanted.

    norms: may they hold a BatchNorm, so that its statistics are not seen?
    """
    readers = graph.consumers()

    def kind_in_block(node: Node) -> str | None:
        kind = kind_of(node, graph)
        return None if kind == "norm" and not norms else kind

    taken: set[str] = set()
    found = []
    for node in graph.calls(lambda node: kind_in_block(node) not in (None, "flatten")):
        if node.name in taken:
            continue
        parts = {kind_in_block(node) or "": node}
        last = node
        while last.name not in wanted and last.name != graph.output:
            following = readers.get(last.name, [])
            kind = kind_in_block(following[0]) if len(following) == 1 else None
            if kind is None or not _goes_on(parts, kind):
                break
            last = following[0]
            parts[kind] = last
        taken.update(part.name for part in parts.values())
        found.append(Chain(tuple(parts.values()), **parts))
    return tuple(found)


def kind_of(node: Node, graph: Graph) -> str | None:
    """Return the part that a call can play in a block, if its first argument is all of the input that it sees."""
    first = node.args[0] if node.args else None
    if not node.varies or node.kwargs or not isinstance(first, Ref) or list(node.refs()).count(first.name) != 1:
        return None
    if graph.varying(node) != (first.name,):
        return None
    shape = graph.shape_of(first.name)
    rule = find(node.op)
    if rule is None:
        return None
    if rule.is_relu:
        return "relu" if shape is not None and len(shape) > 1 else None
    if rule.move is not None and not rule.move.channelwise:
        flat = node.shape is not None and len(node.shape) == 2 and node.shape[0] is None
        return "flatten" if flat and shape is not None and shape[0] is None and len(shape) > 2 else None
    if rule.batch_norm is not None:
        return "norm"
    layer = layer_of(node, node.args[3:])
    if layer is None or shape is None:
        return None
    return "layer" if not layer.matrix or len(shape) == 2 else None


_ORDER = {"layer": 0, "norm": 1, "relu": 2, "flatten": 3}


def _goes_on(parts: dict[str, Node], kind: str) -> bool:
    if kind == "flatten" and "relu" not in parts:
        return False
    return _ORDER[kind] > max(_ORDER[k] for k in parts)
