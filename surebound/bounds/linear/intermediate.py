"""Bounds of the values inside a network, for the relaxations: by intervals, or by backward passes of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from surebound.bounds.by_example import check_by_example, check_first_axis
from surebound.bounds.constants import Constants, affine_in_one
from surebound.bounds.interval import apply_rule
from surebound.bounds.linear.backward import Relaxed, intersect
from surebound.bounds.linear.entries import entries, rows_at_once
from surebound.bounds.linear.steps import step_of
from surebound.bounds.linear.windows import entries_by_windows
from surebound.flags import exact_kernels
from surebound.graph import Node, Program
from surebound.graph.program import resolve, resolve_kwargs
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
    """Bounds of every value over the box (B, ...) and the relaxations that they give.

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
    #: Values whose entries each depend on inputs of their own: intervals lose nothing on them.
    separate: set[str] = field(default_factory=set)
    #: Values whose interval bounds are exact but for rounding: a backward pass gains nothing.
    exact: set[str] = field(default_factory=set)

    def run(self) -> Relaxed:
        graph = self.program.graph
        self.separate.add(graph.input)
        constants = Constants(self.program)
        relaxed = Relaxed(self.program, self.mode, constants, {graph.input: self.box}, {}, self.slopes)
        env: dict[str, Any] = {**constants.of(self.box.shape[0]), graph.input: self.box}
        for node in graph.nodes:
            if not constants.sources(node):
                continue
            sizes = None if self.mode is Soundness.NONE else Sizes()
            self._bound(relaxed, env, node, sizes)
            step = self._step(relaxed, node, sizes)
            if (
                step is not None
                and self.own
                and self._tighten(relaxed, env, node, relaxed.steps[node.name].loose)
            ):
                self._bound(relaxed, env, node)
                self._step(relaxed, node)
            self._note(node, constants.sources(node))
        return relaxed

    def _bound(self, relaxed: Relaxed, env: dict[str, Any], node: Node, sizes: Sizes | None = None) -> None:
        ctx = Context(self.mode, sizes=sizes)
        out = apply_rule(ctx, node, resolve(node.args, env), resolve_kwargs(node.kwargs, env))
        env[node.name] = out
        if isinstance(out, Interval):
            check_first_axis(node, out.shape, self.box.shape[0])
            relaxed.bounds[node.name] = out

    def _step(self, relaxed: Relaxed, node: Node, sizes: Sizes | None = None) -> Node | None:
        if node.name not in relaxed.bounds:  # several results: each is cut off where it is taken out
            return None
        relaxed.steps[node.name] = step_of(
            relaxed.constants, node, relaxed.bounds, self.mode, self.slopes, sizes
        )
        return node

    def _tighten(self, relaxed: Relaxed, env: dict[str, Any], node: Node, loose: Tensor | bool) -> bool:
        """Tighten the operands of a loose step; did anything change?"""
        if loose is False or (isinstance(loose, Tensor) and not bool(loose.any())):
            return False
        changed = False
        for source in dict.fromkeys(relaxed.constants.sources(node)):
            box = relaxed.bounds.get(source)
            known = box is None or source in self.exact or source in self.separate
            if known or box is None or not box.dtype.is_floating_point:  # truth values have no coefficients
                continue
            fits = isinstance(loose, Tensor) and loose.shape == box.shape
            where = loose if fits and isinstance(loose, Tensor) else box.upper > box.lower
            found = (self.tighten or self._backward)(relaxed, source, where)
            relaxed.bounds[source] = env[source] = intersect(box, found)
            self.exact.add(source)  # once is enough, whoever else reads it
            changed = True
        return changed

    def _backward(self, relaxed: Relaxed, source: str, where: Tensor) -> Interval:
        """Bounds of the entries ``where`` (B, *value) by backward passes, in blocks of examples and entries."""
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

    def _note(self, node: Node, sources: tuple[str, ...]) -> None:
        """Keep ``separate`` and ``exact`` up to date."""
        _note(node, sources, self.separate, self.exact)


def _note(node: Node, sources: tuple[str, ...], separate: set[str], exact: set[str]) -> None:
    rule = find(node.op)
    if rule is None or len(sources) != 1:
        return
    affine = affine_in_one(node, sources)
    if rule.activation is not None or (affine is not None and affine.entrywise):
        for known in (separate, exact):
            if sources[0] in known:
                known.add(node.name)
    elif affine is not None and sources[0] in separate:
        exact.add(node.name)


def exactly_bounded(constants: Constants) -> set[str]:
    """The values whose interval bounds are exact but for rounding."""
    separate, exact = {constants.program.graph.input}, set[str]()
    for node in constants.program.graph.nodes:
        _note(node, constants.sources(node), separate, exact)
    return separate | exact
