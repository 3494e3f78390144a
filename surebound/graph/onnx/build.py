"""Put a Graph together call by call: what an importer writes to.

A file describes one example, often with a batch axis of size 1; a Program takes a free batch. So every value is kept
example by example: the file's shape, and the shape without batch axis in which the Graph holds the same entries in
the same order. The two differ only in axes of size 1, or while a reshape has not been needed yet.

Whole numbers and truth values of a file are held as float32 numbers, truth values as 0 and 1: their bounds contain the
exact number, and whatever jumps between whole numbers rounds first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from surebound.errors import GraphError
from surebound.graph import decompose
from surebound.graph.decompose import ABOUT
from surebound.graph.onnx.file import LARGEST_TENSOR
from surebound.graph.program import First, Graph, Node, Program, Ref, live, resolve

Shape = tuple[int, ...]
Span = tuple[float, float]

#: Nothing is known of the size of numbers.
ANY: Span = (-math.inf, math.inf)


@dataclass(frozen=True)
class Value:
    """A tensor that depends on the input: ``name`` in the Graph, where it is (B, *item)."""

    name: str
    item: Shape
    shape: Shape  # in the file; as many entries, in the same order
    dtype: str = "float32"  # in the file, by ONNX's name; in the Graph everything is float32
    span: Span = ANY  # of whole numbers: between which they are
    places: frozenset[int] = frozenset()  # of whole numbers: the entries of the input that they are, if they are such

    def reshaped(self, shape: Sequence[int]) -> Value:
        """Return the same entries under another shape of the file; nothing is computed until it is needed."""
        if math.prod(shape) != math.prod(self.shape):
            raise GraphError(f"a tensor of shape {list(self.shape)} cannot become {list(shape)}")
        return replace(self, shape=tuple(shape))

    def typed(self, dtype: str, span: Span = ANY) -> Value:
        """Return the same entries under another element type of the file."""
        return replace(self, dtype=dtype, span=span)

    @property
    def whole(self) -> bool:
        """Are its entries whole numbers or truth values?"""
        return self.dtype != "float32"


@dataclass
class Builder:
    """A Graph in the making; ``weights`` become buffers of its module."""

    shape: Shape  # of the input, without batch axis
    nodes: list[Node] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    prefix: str = "v"  # of the names that calls get
    reals: bool = False  # is the network asked about over the reals, not as executed?
    #: place in the flattened input -> the whole number that it is cut to, where that is known
    pinned: Mapping[int, int] = field(default_factory=dict)
    #: id of a tensor -> its name: shared weights stay shared
    _known: dict[int, str] = field(default_factory=dict)
    #: the calls by name
    made: dict[str, Node] = field(default_factory=dict)
    #: those whose results are conditions, not numbers
    _conditions: set[str] = field(default_factory=set)

    @property
    def input(self) -> Value:
        """The Graph's input."""
        return Value("x", self.shape, self.shape)

    def constant(self, value: Tensor) -> Ref:
        """Add a tensor that does not vary."""
        if id(value) not in self._known:
            name = f"w{len(self.weights)}"
            self._known[id(value)], self.weights[name] = name, value
        return Ref(self._known[id(value)])

    def call(self, op: str, *args: Any, where: str = "") -> Value:
        """Emit ``aten.<op>``, or ``ABOUT``; Values and Tensors among the arguments, also inside lists, become Refs.

        The result's shape in the file is that of its item; callers change it with ``reshaped``.
        """
        target = _overload(op)
        sample: dict[str, Tensor] = {}
        frozen = tuple(self._frozen(arg, sample) for arg in args)
        out = target(*resolve(frozen, sample))
        item = tuple(out.shape[1:])
        name = f"{self.prefix}{len(self.nodes)}"
        self.made[name] = Node(
            name, op if op == ABOUT else f"aten.{op}", target, frozen, {}, "", where, True, (None, *item)
        )
        self.nodes.append(self.made[name])
        if out.dtype == torch.bool:
            self._conditions.add(name)
        return Value(name, item, item)

    def _frozen(self, arg: Any, sample: dict[str, Tensor]) -> Any:
        if isinstance(arg, Value):
            # Zeros, not tensors of the device "meta": those load half of PyTorch's compiler first.
            dtype = torch.bool if arg.name in self._conditions else torch.float32
            sample[arg.name] = torch.zeros((1, *arg.item), dtype=dtype)
            return Ref(arg.name)
        if isinstance(arg, Tensor):
            ref = self.constant(arg)
            sample[ref.name] = arg
            return ref
        if isinstance(arg, (list, tuple)):
            return [self._frozen(each, sample) for each in arg]
        return arg

    def view(self, value: Value, item: Sequence[int]) -> Value:
        """Hold the same entries in another shape."""
        if tuple(item) == value.item:
            return value
        made = self.call("reshape.default", value, [-1, *item])
        return replace(value, name=made.name, item=tuple(item))

    def full(self, value: Value) -> Value:
        """Hold the value in the very shape that the file gives it."""
        return self.view(value, value.shape)

    def spread(self, constant: Tensor, *, bounded: bool = False) -> Value:
        """Give a constant a batch axis: zeros shaped after the input, plus it; exact.

        bounded: make it vary for bounds, too, so that they pay for the rounding of what is computed from it.
        """
        shape = tuple(constant.shape)
        first = self.call("slice.Tensor", self.view(self.input, (math.prod(self.shape),)), 1, 0, 1)
        if bounded:
            first = self.call("mul.Tensor", first, torch.zeros(()))
        zeros = self.call("expand.default", first, [-1, math.prod(shape)])
        if not bounded:
            zeros = self.call("zeros_like.default", zeros)
        return self.view(self.call("add.Tensor", zeros, constant.reshape(-1)), shape).reshaped(shape)

    def finish(self, output: Value) -> ImportedNetwork:
        """Return the network whose output is a value, flattened to (B, K)."""
        flat = self.view(output, (math.prod(output.shape),))
        if flat.name == "x":  # a network that does nothing still needs a call
            flat = self.call("clone.default", flat)
        nodes = live(self.nodes, flat.name)
        needed = {name for node in nodes for name in node.refs()}
        weights = {name: value for name, value in self.weights.items() if name in needed}
        graph = Graph(
            input="x",
            input_shape=(None, *self.shape),
            dtype=torch.float32,
            nodes=nodes,
            output=flat.name,
            parameters={name: name for name in weights},
            constants={},
        )
        return ImportedNetwork(graph, weights)


class ImportedNetwork(nn.Module):
    """A network read from a file: (B, *input) -> (B, K). Its weights are buffers, exactly those of the file."""

    def __init__(self, graph: Graph, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.graph = graph
        for name, value in weights.items():
            self.register_buffer(name, value)

    @property
    def program(self) -> Program:
        """What bounds walk over."""
        return Program(self.graph, self)

    def forward(self, x: Tensor) -> Tensor:
        return self.program(x)

    def double(self) -> Self:
        """Compute in float64 from now on, with the same weights; a network whose calls name a dtype cannot."""
        if self.graph.calls(_names_dtype):
            raise TypeError("a call of this network names a dtype")
        self.graph = replace(self.graph, dtype=torch.float64)
        return super().double()

    def __getstate__(self) -> dict[str, Any]:
        # For other processes: operators cannot be pickled, their names can.
        return {**self.__dict__, "graph": self._with_targets(lambda op: None)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.graph = self._with_targets(lambda op: _overload(op.removeprefix("aten.")))

    def _with_targets(self, target: Callable[[str], Any]) -> Graph:
        nodes = tuple(replace(node, target=target(node.op)) for node in self.graph.nodes)
        return replace(self.graph, nodes=nodes)

    def extra_repr(self) -> str:
        """Return the input and the calls, which say what the network computes together with the weights."""
        return str(self.graph)


def _names_dtype(node: Node) -> bool:
    return any(isinstance(value, torch.dtype) for value in (*node.args, *node.kwargs.values()))


def _overload(op: str) -> Any:
    if op == ABOUT:
        return decompose.as_traced
    name, overload = op.split(".")
    target = getattr(getattr(torch.ops.aten, name), overload)
    return First(target) if name == "_native_batch_norm_legit_no_training" else target


def check_size(shape: Sequence[int], what: str) -> None:
    """Refuse a tensor that a small file asks for and that does not fit memory."""
    if math.prod(shape) > LARGEST_TENSOR:
        raise GraphError(f"{what} asks for a tensor of shape {list(shape)}; that is too large")


def broadcast(shapes: Sequence[Sequence[int]], where: str) -> Shape:
    """Return the shape that several shapes broadcast to.

    >>> broadcast([(3, 1), (4,)], "here")
    (3, 4)
    """
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(*([1] * (rank - len(shape))), *shape) for shape in shapes]
    out = []
    for sizes in zip(*padded, strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            given = ", ".join(str(list(shape)) for shape in shapes)
            raise GraphError(f"{where}: shapes {given} do not broadcast")
        out.append(wide.pop() if wide else 1)
    return tuple(out)
