"""Program: our own immutable picture of a network, a list of operator calls in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from surebound.errors import GraphError, InputError

Derived = TypeVar("Derived")


@dataclass(frozen=True)
class Ref:
    """An argument that is the value of a node, an input, a parameter or a constant."""

    name: str


@dataclass(frozen=True)
class Node:
    """One operator call."""

    name: str
    op: str  # "aten.conv2d.default"
    target: Callable[..., Any]  # runs it on tensors
    args: tuple[Any, ...]  # may hold Refs, also inside lists
    kwargs: Mapping[str, Any]
    module: str  # path of the submodule that called it, "" for the root
    source: str  # the user's line, "file.py:12: h = self.conv(x)"
    varies: bool  # does its value depend on the input's values?
    shape: tuple[int | None, ...] | None  # None where the batch size stands; None if not a tensor
    #: Is its first size that of the batch, and no other one? Always, where the batch size is not free.
    by_example: bool = True

    def refs(self) -> Iterator[str]:
        """Names that this call reads, with repetitions."""
        yield from _refs(self.args)
        yield from _refs(tuple(self.kwargs.values()))


@dataclass(frozen=True)
class First:
    """Call an operator and keep its first result; the others are by-products."""

    target: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)[0]


@dataclass(frozen=True, eq=False)
class Graph:
    """The calls of a network without its parameters: what tracing finds and what is cached."""

    input: str
    input_shape: tuple[int | None, ...]  # None: free batch size
    dtype: torch.dtype
    nodes: tuple[Node, ...]
    output: str
    parameters: Mapping[str, str]  # name in the graph -> path in the module (parameters and buffers)
    constants: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        # Derived once: where each value dies, so that walks hold only what is still needed.
        last: dict[str, int] = {}
        for position, node in enumerate(self.nodes):
            for name in node.refs():
                last[name] = position
        last.pop(self.output, None)
        dying: list[tuple[str, ...]] = [() for _ in self.nodes]
        for name, position in last.items():
            dying[position] = (*dying[position], name)
        object.__setattr__(self, "dying", tuple(dying))
        object.__setattr__(self, "by_name", {node.name: node for node in self.nodes})

    dying: tuple[tuple[str, ...], ...] = ()
    by_name: Mapping[str, Node] = None  # type: ignore[assignment]  # set in __post_init__

    @property
    def entries(self) -> int:
        """How many numbers the values of one example hold together."""
        shapes = (node.shape for node in self.nodes if node.shape is not None)
        return sum(math.prod(n or 1 for n in shape) for shape in shapes)

    def consumers(self) -> dict[str, list[Node]]:
        """Who reads each value."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.refs()):
                readers.setdefault(name, []).append(node)
        return readers


def once_per_graph(derive: Callable[[Graph], Derived]) -> Callable[[Graph], Derived]:
    """Remember what ``derive`` found, as long as the graph lives. A call that raises is not remembered."""
    found: WeakKeyDictionary[Graph, Derived] = WeakKeyDictionary()

    @wraps(derive)
    def remembered(graph: Graph) -> Derived:
        if graph not in found:
            found[graph] = derive(graph)
        return found[graph]

    return remembered


@dataclass(frozen=True)
class Program:
    """A graph together with the live module whose parameters it reads at every call."""

    graph: Graph
    module: nn.Module

    def parameters(self) -> dict[str, Tensor]:
        """The current value of every parameter, buffer and constant of the graph, by graph name."""
        values = dict(self.graph.constants)
        for name, path in self.graph.parameters.items():
            values[name] = _lookup(self.module, path)
        return values

    def __call__(self, x: Tensor) -> Tensor:
        """Run the network; equal to the module in eval mode."""
        self.check_input(x)
        env: dict[str, Any] = self.parameters()
        env[self.graph.input] = x
        for node, dying in zip(self.graph.nodes, self.graph.dying, strict=True):
            env[node.name] = node.target(*resolve(node.args, env), **resolve_kwargs(node.kwargs, env))
            for name in dying:
                del env[name]
        result = env[self.graph.output]
        if not isinstance(result, Tensor):
            raise GraphError(f"the network returned {type(result).__name__}; it must return one tensor")
        return result

    def check_input(self, x: Tensor) -> None:
        """Refuse a batch of another shape or dtype than the traced one."""
        expected = self.graph.input_shape
        fits = x.dim() == len(expected) and all(
            e in (None, s) for e, s in zip(expected, x.shape, strict=True)
        )
        if not fits:
            shape = "(" + ", ".join("B" if e is None else str(e) for e in expected) + ")"
            raise InputError(f"the input has shape {tuple(x.shape)} but the network was traced for {shape}")
        if x.dtype != self.graph.dtype:
            raise InputError(
                f"the input is {x.dtype} but the network was traced for {self.graph.dtype}; "
                f"convert it with x.to({self.graph.dtype})"
            )


def _lookup(module: nn.Module, path: str) -> Tensor:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    if not isinstance(value, Tensor):
        raise GraphError(
            f"{path} was a tensor when the network was traced and is now {type(value).__name__}; trace again"
        )
    return value


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _refs(item)


_NESTED = (Ref, tuple, list)


def resolve(value: Any, env: Mapping[str, Any]) -> Any:
    """Replace every Ref by its value."""
    kind = type(value)  # exact types: these lines run for every argument of every call
    if kind is Ref:
        return env[value.name]
    if kind is tuple:
        return tuple([resolve(item, env) if type(item) in _NESTED else item for item in value])
    if kind is list:
        return [resolve(item, env) if type(item) in _NESTED else item for item in value]
    return value


def resolve_kwargs(kwargs: Mapping[str, Any], env: Mapping[str, Any]) -> dict[str, Any]:
    """``resolve`` for keyword arguments."""
    if not kwargs:
        return {}
    return {key: resolve(item, env) for key, item in kwargs.items()}
