"""Bounds of the values inside a network, for the relaxations: by intervals, or by backward passes of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from surebound.bounds.by_example import check_by_example, check_first_axis
from surebound.bounds.constants import Constants, affine_in_one
from surebound.bounds.interval import apply_rule
from surebound.bounds.linear.backward import Relaxed, intersect
from surebound.bounds.linear.entries import entries, rows_at_once
from surebound.bounds.linear.steps import ConstantStep, step_of
from surebound.bounds.linear.windows import entries_by_windows
from surebound.flags import exact_kernels
from surebound.graph import Node, Program
from surebound.graph.walk import Env, forward
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Context, check_supported, find
from surebound.rules.registry import Sizes
from surebound.rules.relax.lines import Slopes

#: Bytes that the coefficient arrays of one backward pass may take.
MEMORY = 1 << 29

#: Bounds of the entries (B, *value) of a value, which a relaxation so far covers.
Tighten = Callable[[Relaxed, str, Tensor], Interval]


def relax(
    program: Program,
    box: Interval,
    mode: Soundness,
    *,
    own: bool,
    slopes: Slopes = "adaptive",
    memory: int = MEMORY,
    tighten: Tighten | None = None,
) -> Relaxed:
    """Bound every value over the box (B, ...) and relax every call by these bounds.

    own: tighten the bounds that enter a relaxation by backward passes (full CROWN), only where the relaxation is
    loose, in blocks that keep to ``memory`` bytes; otherwise interval bounds (CROWN-IBP). Never looser than
    interval bounds. tighten: another way to do that than backward passes through the whole network.
    """
    check_supported(program.graph)
    check_by_example(program)
    program.check_input(box.lower)
    build = _Build(program, box, mode, own, slopes, memory, tighten)
    if mode is Soundness.NONE:
        return build.run()
    with exact_kernels():
        return build.run()


@dataclass
class _Build:
    """One forward walk that leaves bounds and steps behind."""

    program: Program
    box: Interval
    mode: Soundness
    own: bool
    slopes: Slopes
    memory: int
    tighten: Tighten | None = None
    precision: dict[str, Precision] = field(default_factory=dict)

    def run(self) -> Relaxed:
        graph, constants = self.program.graph, Constants(self.program)
        self.precision[graph.input] = Precision.SEPARATE
        relaxed = Relaxed(self.program, self.mode, constants, {graph.input: self.box}, {}, self.slopes)

        def visit(node: Node, env: Env) -> Any:
            sizes = None if self.mode is Soundness.NONE else Sizes()
            self._bound(relaxed, env, node, sizes)
            if self._step(relaxed, node, sizes) and self._tighten(relaxed, env, node):
                self._bound(relaxed, env, node)
                self._step(relaxed, node)
            found = precision(node, constants.sources(node), self.precision)
            if found is not None:
                self.precision[node.name] = found
            return env[node.name]

        env = forward(graph.keeping, {**constants.of(self.box.shape[0]), graph.input: self.box}, visit)
        if graph.output not in relaxed.bounds:  # the network ignores its input
            relaxed.bounds[graph.output] = Interval.point(env[graph.output])
            relaxed.steps[graph.output] = ConstantStep(env[graph.output], env[graph.output])
        return relaxed

    def _bound(self, relaxed: Relaxed, env: Env, node: Node, sizes: Sizes | None = None) -> None:
        out = env[node.name] = apply_rule(Context(self.mode, sizes), node, *node.arguments(env))
        if isinstance(out, Interval):
            check_first_axis(node, out.shape, self.box.shape[0])
            relaxed.bounds[node.name] = out

    def _step(self, relaxed: Relaxed, node: Node, sizes: Sizes | None = None) -> bool:
        """Relax a call, if it has one result; several are relaxed where each is taken out."""
        if node.name not in relaxed.bounds:
            return False
        relaxed.steps[node.name] = step_of(
            relaxed.constants, node, relaxed.bounds, self.mode, self.slopes, sizes
        )
        return True

    def _tighten(self, relaxed: Relaxed, env: Env, node: Node) -> bool:
        """Tighten the operands of a loose step; did anything change?"""
        loose = self.own and relaxed.steps[node.name].loose
        if loose is False or (isinstance(loose, Tensor) and not bool(loose.any())):
            return False
        changed = False
        for source in dict.fromkeys(relaxed.constants.sources(node)):
            box = relaxed.bounds.get(source)
            if box is None or source in self.precision:
                continue
            if not box.dtype.is_floating_point:  # truth values have no coefficients
                continue
            fits = isinstance(loose, Tensor) and loose.shape == box.shape
            where = loose if fits and isinstance(loose, Tensor) else box.upper > box.lower
            found = (self.tighten or self._backward)(relaxed, source, where)
            relaxed.bounds[source] = env[source] = intersect(box, found)
            self.precision[source] = Precision.EXACT  # once is enough, whoever else reads it
            changed = True
        return changed

    def _backward(self, relaxed: Relaxed, source: str, where: Tensor) -> Interval:
        """Bound the entries ``where`` (B, *value) by backward passes, in blocks of examples and entries."""
        batch = where.shape[0]
        local = entries_by_windows(relaxed, source, where, self.memory)
        if local is not None:
            return local
        room = rows_at_once(relaxed, source, self.memory)
        together = batch if self.program.graph.input_shape[0] is not None else max(1, min(batch, room // 2))
        parts = []
        for first in range(0, batch, together):
            index = slice(first, first + together)
            part = relaxed if together >= batch else relaxed.select(index)
            parts.append(entries(part, source, where[index], max(1, room // (2 * together))))
        return Interval(torch.cat([p.lower for p in parts]), torch.cat([p.upper for p in parts]))


class Precision(Enum):
    """Values whose interval bounds are exact but for rounding: a backward pass gains nothing."""

    SEPARATE = "entries each depend on inputs of their own: intervals lose nothing in what follows"
    EXACT = "intervals may lose something in what follows"


def precision(node: Node, sources: tuple[str, ...], known: Mapping[str, Precision]) -> Precision | None:
    """Say how exact interval bounds of a call's value are, from what is known of its operands; None: not exact."""
    rule = find(node.op)
    if rule is None or len(sources) != 1 or sources[0] not in known:
        return None
    affine = affine_in_one(node, sources)
    if rule.activation is not None or (affine is not None and affine.entrywise):
        return known[sources[0]]
    separate = known[sources[0]] is Precision.SEPARATE
    return Precision.EXACT if affine is not None and separate else None


def exactly_bounded(constants: Constants) -> set[str]:
    """Name the values whose interval bounds are exact but for rounding."""
    graph = constants.program.graph
    known: dict[str, Precision] = {graph.input: Precision.SEPARATE}
    forward(graph.keeping, known, lambda node, env: precision(node, constants.sources(node), env))
    return set(known)
