"""Values of a program that do not depend on the input, and which operands of its calls vary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.graph import Node, Program
from surebound.graph.program import Ref, resolve, resolve_kwargs
from surebound.graph.walk import Env, Steps, forward, freeing
from surebound.rules import Affine, describe, find


def environment(program: Program, batch: int) -> Env:
    """Return the parameters and the values of the calls that do not depend on the input, for a batch of this size."""
    graph, env = program.graph, dict[str, Any](program.parameters())

    def sized(name: str) -> list[int]:
        return [batch if n is None else n for n in graph.shape_of(name) or ()]

    def visit(node: Node, env: Env) -> Any:
        if node.is_size:
            return sized(node.args[0].name)[node.args[1]]
        if all(name in env for name in node.refs()):
            return node.run(env)
        if not _reads_a_shape(node, env):  # zeros_like and friends
            return None
        like = torch.zeros(sized(node.args[0].name), dtype=graph.dtype, device=program.device)
        return node.run({**env, node.args[0].name: like})

    return forward(graph.keeping, env, visit)


def _reads_a_shape(node: Node, env: Mapping[str, Any]) -> bool:
    rule = find(node.op)
    if rule is None or not rule.reads_shape or not isinstance(node.args[0], Ref):
        return False
    return all(name in env for name in node.refs() if name != node.args[0].name)


class Constants:
    """``environment`` for any batch size, each computed once, and other facts about a program's calls.

    norms: mean and variance that normalisations use instead of their running ones, by name of the call.
    """

    def __init__(self, program: Program, norms: Mapping[str, tuple[Tensor, Tensor]] | None = None) -> None:
        self.program = program
        self.norms = norms or {}
        self._known: dict[int, dict[str, Any]] = {}
        self._sources: dict[str, tuple[str, ...]] = {}
        self._uses: Counter[str] | None = None
        self._wide: dict[int, tuple[Tensor, Tensor]] = {}

    def wide(self, value: Tensor) -> Tensor:
        """Return a constant of floating-point numbers in float64, each converted once; any other as it is."""
        if not value.is_floating_point():
            return value
        if id(value) not in self._wide:  # the tensor is kept with its copy, so that no other gets its id
            self._wide[id(value)] = value, value.double()
        return self._wide[id(value)][1]

    def of(self, batch: int) -> dict[str, Any]:
        """Return the environment of a batch of this size."""
        if batch not in self._known:
            self._known[batch] = environment(self.program, batch)
        return self._known[batch]

    def arguments(self, node: Node, position: int, batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call but for the varying one at ``position``."""
        env = self.of(batch)
        args = tuple(None if i == position else resolve(v, env) for i, v in enumerate(node.args))
        rule = find(node.op)
        if node.name in self.norms and rule is not None and rule.batch_norm is not None:
            args = rule.batch_norm.replace(args, *self.norms[node.name])
        return args[:position] + args[position + 1 :], resolve_kwargs(node.kwargs, env)

    def sources(self, node: Node) -> tuple[str, ...]:
        """Name the operands that coefficients of a call go back to, in the order of the arguments, with repetitions."""
        if node.name not in self._sources:
            fixed = self.of(1)
            split = taken_from(self.program, node)
            found = tuple(name for name in (split or node).refs() if name not in fixed)
            rule = find(node.op)
            if rule is not None and rule.sizes_after_first:
                if found and Ref(found[0]) != node.args[0]:  # coefficients of the value would go back to a size
                    raise BoundError(
                        f"the value of this call does not vary, the size of its roundings does ({describe(node)})"
                    )
                found = found[:1]
            self._sources[node.name] = found
        return self._sources[node.name]

    def used_once(self, name: str) -> bool:
        """Is a value read by one argument of one call only?"""
        if self._uses is None:
            self._uses = Counter(source for node in self.calls() for source in self.sources(node))
        return self._uses[name] == 1

    def calls(self) -> list[Node]:
        """List the calls that coefficients go back through: those that read a value that varies."""
        return self.program.graph.calls(lambda node: bool(self.sources(node)))

    def steps(self) -> Steps:
        """Return ``calls`` for a walk that drops a value when no later call's coefficients go back to it.

        A part of a tensor taken apart goes back to the tensor, which so lives on after the call that takes it apart.
        """
        return freeing(self.calls(), (self.program.graph.output,), self.sources)


def taken_from(program: Program, node: Node) -> Node | None:
    """Return the call with several results (split, chunk, unbind; max along an axis) that a ``getitem`` picks from."""
    if not node.is_part:
        return None
    producer = program.graph.by_name.get(node.args[0].name)
    rule = find(producer.op) if producer is not None else None
    return producer if rule is not None and (rule.apart or rule.several) else None


def moved_from(program: Program, node: Node) -> Node | None:
    """Return ``taken_from`` where the parts are entries of the tensor as they were, not computed from them."""
    producer = taken_from(program, node)
    rule = None if producer is None else find(producer.op)
    return None if rule is None or rule.several else producer


def affine_in_one(node: Node, sources: tuple[str, ...]) -> Affine | None:
    """Return the affine column, if the call is affine in its one varying operand."""
    rule = find(node.op)
    if rule is None or len(sources) != 1 or Ref(sources[0]) not in node.args:
        return None
    return rule.affine_at(node.args.index(Ref(sources[0])))
