"""Which calls of a program the training pass runs as one block: weighted layer, BatchNorm, ReLU, flatten."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from surebound.graph import Graph, Node
from surebound.graph.program import Ref, once_per_graph
from surebound.rules import find, layer_of


@dataclass(frozen=True)
class Chain:
    """Calls that feed each other and nobody else, in order; each kind at most once."""

    nodes: tuple[Node, ...]
    layer: Node | None = None
    norm: Node | None = None
    relu: Node | None = None
    flatten: Node | None = None

    @property
    def last(self) -> Node:
        return self.nodes[-1]


@once_per_graph
def _known(graph: Graph) -> dict[tuple[frozenset[str], bool], tuple[Chain, ...]]:
    """What was found for a graph so far: every step of a training asks the same."""
    return {}


def chains(graph: Graph, wanted: Collection[str], *, norms: bool) -> tuple[Chain, ...]:
    """The blocks of a graph; none goes across a value that is wanted.

    norms: may they hold a BatchNorm, so that its statistics are not seen?
    """
    known, question = _known(graph), (frozenset(wanted), norms)
    if question not in known:
        known[question] = _find(graph, *question)
    return known[question]


def _find(graph: Graph, wanted: Collection[str], norms: bool) -> tuple[Chain, ...]:
    readers = graph.consumers()
    kinds = {node.name: kind_of(node, graph) for node in graph.nodes}
    if not norms:
        kinds = {name: None if kind == "norm" else kind for name, kind in kinds.items()}
    taken: set[str] = set()
    found = []
    for node in graph.nodes:
        kind = kinds[node.name]
        if kind is None or kind == "flatten" or node.name in taken:
            continue
        parts = {kind: node}
        last = node
        while last.name not in wanted and last.name != graph.output:
            following = readers.get(last.name, [])
            kind = kinds[following[0].name] if len(following) == 1 else None
            if kind is None or not _goes_on(parts, kind):
                break
            last = following[0]
            parts[kind] = last
        taken.update(part.name for part in parts.values())
        found.append(Chain(tuple(parts.values()), **parts))
    return tuple(found)


def kind_of(node: Node, graph: Graph) -> str | None:
    """The part that a call can play in a block, if its first argument is all of the input that it sees."""
    first = node.args[0] if node.args else None
    if (
        not node.varies
        or node.kwargs
        or not isinstance(first, Ref)
        or list(node.refs()).count(first.name) != 1
    ):
        return None
    varying = [r for r in node.refs() if r == graph.input or (r in graph.by_name and graph.by_name[r].varies)]
    if varying != [first.name]:
        return None
    shape = graph.input_shape if first.name == graph.input else graph.by_name[first.name].shape
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
