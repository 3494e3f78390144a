"""What is fixed about a program's calls: values that no input value reaches, and which operands vary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from surebound.graph import Node, Program
from surebound.graph.program import Ref, resolve, resolve_kwargs
from surebound.rules import Affine, find


def environment(program: Program, batch: int) -> dict[str, Any]:
    """Parameters, and the values of the calls that no input value reaches, for a batch of this size."""
    graph = program.graph
    env: dict[str, Any] = program.parameters()
    shapes = {graph.input: graph.input_shape, **{n.name: n.shape for n in graph.nodes}}
    for node in graph.nodes:
        if node.op == "aten.sym_size.int":
            size = (shapes[node.args[0].name] or ())[node.args[1]]
            env[node.name] = batch if size is None else size
        elif all(name in env for name in node.refs()):
            env[node.name] = node.target(*resolve(node.args, env), **resolve_kwargs(node.kwargs, env))
        elif _reads_a_shape(node, env):  # zeros_like and friends
            like = torch.zeros(
                [batch if n is None else n for n in shapes[node.args[0].name] or ()], dtype=graph.dtype
            )
            local = {**env, node.args[0].name: like}
            env[node.name] = node.target(*resolve(node.args, local), **resolve_kwargs(node.kwargs, local))
    return env


def _reads_a_shape(node: Node, env: Mapping[str, Any]) -> bool:
    rule = find(node.op)
    if rule is None or not rule.reads_shape or not isinstance(node.args[0], Ref):
        return False
    return all(name in env for name in node.refs() if name != node.args[0].name)


class Constants:
    """``environment`` for any batch size, each computed once, and what else is fixed about a program's calls.

    norms: mean and variance that normalisations use instead of their running ones, by name of the call.
    """

    def __init__(
        self, program: Program, norms: Mapping[str, tuple[torch.Tensor, torch.Tensor]] | None = None
    ) -> None:
        self.program = program
        self.norms = norms or {}
        self._known: dict[int, dict[str, Any]] = {}
        self._sources: dict[str, tuple[str, ...]] = {}
        self._uses: dict[str, int] = {}

    def of(self, batch: int) -> dict[str, Any]:
        """The environment of a batch of this size."""
        if batch not in self._known:
            self._known[batch] = environment(self.program, batch)
        return self._known[batch]

    def arguments(self, node: Node, position: int, batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call but for the varying one at ``position``."""
        env = self.of(batch)
        args = tuple(None if i == position else resolve(v, env) for i, v in enumerate(node.args))
        rule = find(node.op)
        if node.name in self.norms and rule is not None and rule.batch_norm is not None:
            args = rule.batch_norm.replace(args, *self.norms[node.name])
        return args[:position] + args[position + 1 :], resolve_kwargs(node.kwargs, env)

    def sources(self, node: Node) -> tuple[str, ...]:
        """The operands that coefficients of a call go back to, in the order of the arguments, with repetitions."""
        if node.name not in self._sources:
            fixed = self.of(1)
            split = taken_from(self.program, node)
            found = tuple(name for name in (split or node).refs() if name not in fixed)
            self._sources[node.name] = found
        return self._sources[node.name]

    def used_once(self, name: str) -> bool:
        """Is a value read by one argument of one call only?"""
        if not self._uses:
            for node in self.program.graph.nodes:
                for source in self.sources(node):
                    self._uses[source] = self._uses.get(source, 0) + 1
        return self._uses.get(name, 0) == 1


def taken_from(program: Program, node: Node) -> Node | None:
    """The call with several results (split, chunk, unbind; max along an axis), of which a ``getitem`` picks one."""
    if node.op != "getitem":
        return None
    producer = program.graph.by_name.get(node.args[0].name)
    rule = find(producer.op) if producer is not None else None
    return producer if rule is not None and (rule.apart or rule.several) else None


def moved_from(program: Program, node: Node) -> Node | None:
    """``taken_from`` where the parts are entries of the tensor as they were, not what was computed from them."""
    producer = taken_from(program, node)
    rule = None if producer is None else find(producer.op)
    return None if rule is None or rule.several else producer


def varying_sources(program: Program, node: Node) -> tuple[str, ...]:
    """The operands that depend on the input as far as the graph tells, without looking at rules or values."""
    graph = program.graph
    return tuple(
        r for r in node.refs() if r == graph.input or (r in graph.by_name and graph.by_name[r].varies)
    )


def affine_in_one(node: Node, sources: tuple[str, ...]) -> Affine | None:
    """The affine column, if the call is affine in its one varying operand."""
    rule = find(node.op)
    if rule is None or len(sources) != 1 or Ref(sources[0]) not in node.args:
        return None
    return rule.affine_at(node.args.index(Ref(sources[0])))
