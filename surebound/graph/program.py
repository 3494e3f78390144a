"""Program: our own immutable picture of a network, a list of operator calls in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from surebound.errors import GraphError, InputError, SpecError
from surebound.graph.walk import Env, Steps, forward, freeing, keeping

Derived = TypeVar("Derived")

#: The calls that are notions of the graph and no operators: the size of an axis, one of several results.
SIZE, PART = "aten.sym_size.int", "getitem"


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

    @property
    def is_size(self) -> bool:
        """Does it give the size of an axis? Then the values of what it reads do not matter."""
        return self.op == SIZE

    @property
    def is_part(self) -> bool:
        """Does it pick one of the results of a call that has several?"""
        return self.op == PART

    def refs(self) -> Iterator[str]:
        """Yield the names that this call reads, with repetitions."""
        yield from _refs(self.args)
        yield from _refs(tuple(self.kwargs.values()))

    def arguments(self, env: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments, with values in place of names."""
        return resolve(self.args, env), resolve_kwargs(self.kwargs, env)

    def run(self, env: Mapping[str, Any]) -> Any:
        """Execute the call on values."""
        return self.target(*resolve(self.args, env), **resolve_kwargs(self.kwargs, env))


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

    # Derived once, in __post_init__:
    steps: Steps = ()  # the calls, each with the values that die there, so that walks hold only what is still needed
    keeping: Steps = ()  # the calls, for a walk that keeps every value
    by_name: Mapping[str, Node] = None  # type: ignore[assignment]
    paths: Mapping[str, tuple[str, ...]] = None  # type: ignore[assignment]  # ``parameters``, split at the dots

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", freeing(self.nodes, (self.output,)))
        object.__setattr__(self, "keeping", keeping(self.nodes))
        object.__setattr__(self, "paths", {k: tuple(v.split(".")) for k, v in self.parameters.items()})
        object.__setattr__(self, "by_name", {node.name: node for node in self.nodes})

    def calls(self, where: Callable[[Node], bool]) -> list[Node]:
        """List the calls for which ``where`` holds, in order of execution."""
        return [node for node in self.nodes if where(node)]

    def __str__(self) -> str:
        """List the input and the calls: together with the weights they say what the network computes."""
        calls = [f"{node.name} = {node.op}{node.args}" for node in self.nodes]
        return "\n".join([f"{self.input} {list(self.input_shape)}", *calls])

    @property
    def entries(self) -> int:
        """How many numbers the values of one example hold together."""
        shapes = (node.shape for node in self.nodes if node.shape is not None)
        return sum(math.prod(n or 1 for n in shape) for shape in shapes)

    def consumers(self) -> dict[str, list[Node]]:
        """List the calls that read each value."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.refs()):
                readers.setdefault(name, []).append(node)
        return readers

    def until_last(self, where: Callable[[Node], bool]) -> frozenset[str]:
        """Name the calls up to the last one for which ``where`` holds."""
        last = max((i for i, node in enumerate(self.nodes) if where(node)), default=-1)
        return frozenset(node.name for node in self.nodes[: last + 1])

    def varying(self, node: Node) -> tuple[str, ...]:
        """Name the operands of a call that depend on the input, with repetitions."""
        return tuple(
            name for name in node.refs() if name == self.input or (name in self.by_name and self.by_name[name].varies)
        )

    def shape_of(self, name: str) -> tuple[int | None, ...] | None:
        """Return the shape of the input or of a call's value, with None for the batch size; None if not a tensor."""
        if name == self.input:
            return self.input_shape
        return self.by_name[name].shape if name in self.by_name else None

    def sizes(self) -> list[int]:
        """Count the entries per example of the input and of every tensor that varies."""
        shapes = [
            self.input_shape,
            *(node.shape for node in self.nodes if node.varies and node.shape is not None),
        ]
        return [math.prod(n or 1 for n in shape[1:]) for shape in shapes]


def live(nodes: Sequence[Node], output: str) -> tuple[Node, ...]:
    """Drop calls whose results are never read."""
    needed, kept = {output}, list[Node]()
    for node in reversed(nodes):
        if node.name in needed:
            kept.append(node)
            needed.update(node.refs())
    return tuple(reversed(kept))


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
        """Return the current value of every parameter, buffer and constant of the graph, by graph name."""
        values = dict(self.graph.constants)
        for name, path in self.graph.paths.items():
            values[name] = _lookup(self.module, path)
        return values

    def __call__(self, x: Tensor) -> Tensor:
        """Run the network; equal to the module in eval mode."""
        self.check_input(x)
        graph = self.graph
        env: Env = {**self.parameters(), graph.input: x}
        result = forward(graph.steps, env, Node.run, graph.output)[graph.output]
        if not isinstance(result, Tensor):
            raise GraphError(f"the network returned {type(result).__name__}; it must return one tensor")
        return result

    @property
    def device(self) -> torch.device | None:
        """Where the network's parameters are; None if it has none."""
        return next((value.device for value in self.parameters().values()), None)

    @property
    def outputs(self) -> int:
        """The number of outputs K of a network whose output is (B, K)."""
        shape = self.graph.shape_of(self.graph.output)
        if shape is None or len(shape) != 2 or shape[1] is None:
            raise SpecError(f"the network's output has shape {shape}; specifications need (B, K): flatten the output")
        return shape[1]

    def check_input(self, x: Tensor) -> None:
        """Refuse a batch of another shape or dtype than the traced one."""
        expected = self.graph.input_shape
        fits = x.dim() == len(expected) and all(e in (None, s) for e, s in zip(expected, x.shape, strict=True))
        if not fits:
            shape = "(" + ", ".join("B" if e is None else str(e) for e in expected) + ")"
            raise InputError(f"the input has shape {tuple(x.shape)} but the network was traced for {shape}")
        if x.dtype != self.graph.dtype:
            raise InputError(
                f"the input is {x.dtype} but the network was traced for {self.graph.dtype}; "
                f"convert it with x.to({self.graph.dtype})"
            )


def _lookup(module: nn.Module, path: tuple[str, ...]) -> Tensor:
    value: Any = module
    for name in path:
        value = getattr(value, name)
    if not isinstance(value, Tensor):
        raise GraphError(
            f"{'.'.join(path)} was a tensor when the network was traced and is now {type(value).__name__}; trace again"
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
    """Replace every Ref among keyword arguments by its value."""
    if not kwargs:
        return {}
    return {key: resolve(item, env) for key, item in kwargs.items()}
