"""Bounds of the values inside a network, for the relaxations: by intervals, or by backward passes of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from surebound.bounds.by_example import check_by_example, check_first_axis
from surebound.bounds.constants import Constants, affine_in_one
from surebound.bounds.first_sums import first_sums
from surebound.bounds.forward.domain import Forward
from surebound.bounds.forward.pair import Pair, PairDomain, varying
from surebound.bounds.interval import apply_rule
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.entries import LIVE, entries, rows_at_once
from surebound.bounds.linear.reads import entries_read
from surebound.bounds.linear.steps import ConstantStep, step_of
from surebound.bounds.linear.windows import entries_by_windows
from surebound.flags import exact_kernels
from surebound.graph import Node, Program
from surebound.graph.walk import Env, forward
from surebound.interval import Interval, intersect
from surebound.norm_ball import Ball
from surebound.numerics import Soundness
from surebound.rules import Context, check_supported, find
from surebound.rules.registry import Sizes
from surebound.rules.relax.lines import Slopes

#: Bytes that the coefficient arrays of one backward pass may take.
MEMORY = 1 << 29

#: Rounding may matter if what the backward passes of open rows pay for it is more than this part of their bounds:
#: bounds inside the network have paid as much, layer after layer, and may have lost thirty times that together.
SHOWS = 1 / 32  # heuristic: measured on the networks of PERFORMANCE.md

#: Forward bounds in the inputs that vary pay where these are at most this part of the entries of the largest value.
FEW = 1 / 32  # heuristic: a pair of columns for each of them, against a row of every unit

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
    wide: bool = False,
    rows: Tensor | None = None,
    known: Mapping[str, Interval] | None = None,
) -> Relaxed:
    """Bound every value over the box (B, ...) and relax every call by these bounds.

    own: tighten the bounds that enter a relaxation by backward passes (full CROWN), only where the relaxation is
    loose, in blocks that keep to ``memory`` bytes; otherwise interval bounds (CROWN-IBP). Never looser than
    interval bounds. Where few inputs vary, forward bounds in these come first, and backward passes are for the units
    that they leave unstable. tighten: another way to do that than backward passes through the whole network. wide:
    coefficients in float64, whatever the network computes in, so that little is paid but the network's own rounding
    (wide.py). rows (..., K): what the outputs will be multiplied with; entries that they do not read keep interval
    bounds (reads.py). known: sound bounds of values over the same box; only what they leave loose is tightened.
    """
    check_supported(program.graph)
    check_by_example(program)
    program.check_input(box.lower)
    bounds = {program.graph.input: box}
    constants = Constants(program)
    read = entries_read(constants, rows) if own and rows is not None else {}
    start = Relaxed(program, mode, constants, bounds, {}, slopes, wide=wide, read=read)
    with nullcontext() if mode is Soundness.NONE else exact_kernels():
        sums = first_sums(constants, box, mode) if known is None else {}
        ahead = _forward(start, box, memory) if own else None
        return _Build(start, own, memory, tighten, ahead, sums if known is None else known).run()


def rounding_matters(
    program: Program, box: Interval, c: Tensor, d: Tensor, upper: Tensor, paid: Tensor, memory: int = MEMORY
) -> Tensor:
    """Say which examples (B,) are open mainly for what was ``paid`` (B, S) for rounding in bounds ``upper`` of c.z + d.

    Those whose open rows all paid a noticeable part, if plain arithmetic brings the largest to half of it or less.
    """
    settled = upper <= 0
    found = (settled | (paid > SHOWS * upper)).all(1) & ~settled.all(1)
    if bool(found.any()):  # no arithmetic brings a bound below a value that the network takes
        found &= 2 * _reached(program, box, c, d).amax(1) <= upper.amax(1)
    if not bool(found.any()):
        return found
    free = program.graph.input_shape[0] is None
    index = found.nonzero()[:, 0] if free else torch.arange(len(found), device=found.device)
    with torch.no_grad():
        plain = relax(program, box.take(index), Soundness.NONE, own=True, memory=memory, rows=c)
        best = plain.evaluate(c[index], d[index]).upper.amax(1)
    return found.index_put((index,), found[index] & (2 * best <= upper[index].amax(1)))


def _reached(program: Program, box: Interval, c: Tensor, d: Tensor) -> Tensor:
    """Return c.z + d (B, S) at the centre of the box, whatever the dtypes of rows and network."""
    with torch.no_grad():
        return torch.einsum("bsk,bk->bs", c.double(), program(box.center).double()) + d.double()


def _forward(start: Relaxed, box: Interval, memory: int) -> Forward[Pair] | None:
    """Return forward bounds for boxes in which few inputs vary; None: they would not pay, or take too much memory."""
    widest, columns = max(start.program.graph.sizes()), len(varying(box))
    bytes_of_pair = 2 * (columns + 1) * widest * box.shape[0] * torch.float64.itemsize
    if isinstance(box, Ball) or torch.is_grad_enabled() or columns > FEW * widest or LIVE * bytes_of_pair > memory:
        return None
    return Forward(start.constants, start.mode, PairDomain(box, start.slopes))


@dataclass
class _Build:
    """One forward walk that leaves bounds and steps behind."""

    relaxed: Relaxed  # of the calls so far
    own: bool
    memory: int
    tighten: Tighten | None = None
    forward: Forward[Pair] | None = None
    known: Mapping[str, Interval] = field(default_factory=dict)
    precision: dict[str, Precision] = field(default_factory=dict)
    pairs: dict[str, Pair] = field(default_factory=dict)

    def run(self) -> Relaxed:
        graph, constants = self.relaxed.program.graph, self.relaxed.constants
        box = self.relaxed.bounds[graph.input]
        if not isinstance(box, Ball):  # of a ball, the box says less than a backward pass
            self.precision[graph.input] = Precision.SEPARATE
        if self.forward is not None:
            self.pairs[graph.input] = self.forward.domain.start(box)

        def visit(node: Node, env: Env) -> Any:
            plain = self.relaxed.mode is Soundness.NONE or self.relaxed.wide
            sizes = None if plain else Sizes()
            self._bound(env, node, sizes)
            if self._step(node, sizes) and self._tighten(env, node):
                self._bound(env, node)
                self._step(node)
            varying = self._varying(node)
            found = precision(node, varying, self.precision) if varying else Precision.EXACT
            if found is not None:
                self.precision[node.name] = found
            self._follow(env, node)
            return env[node.name]

        env = forward(graph.keeping, {**constants.of(box.shape[0]), graph.input: box}, visit)
        if graph.output not in self.relaxed.bounds:  # the network ignores its input
            self.relaxed.bounds[graph.output] = Interval.point(env[graph.output])
            self.relaxed.steps[graph.output] = ConstantStep(env[graph.output], env[graph.output])
        return self.relaxed

    def _varying(self, node: Node) -> tuple[str, ...]:
        """Name the operands of a call that are not the same number all over the box."""
        bounds = self.relaxed.bounds
        found = [(name, bounds.get(name)) for name in self.relaxed.constants.sources(node)]
        return tuple(name for name, box in found if box is None or not torch.equal(box.lower, box.upper))

    def _bound(self, env: Env, node: Node, sizes: Sizes | None = None) -> None:
        out = env[node.name] = apply_rule(Context(self.relaxed.mode, sizes), node, *node.arguments(env))
        if isinstance(out, Interval):
            check_first_axis(node, out.shape, self.relaxed.batch)
            if node.name in self.known:
                out = env[node.name] = intersect(out, self.known[node.name])
            self.relaxed.bounds[node.name] = out

    def _step(self, node: Node, sizes: Sizes | None = None) -> bool:
        """Relax a call, if it has one result; several are relaxed where each is taken out."""
        so_far = self.relaxed
        if node.name not in so_far.bounds:
            return False
        so_far.steps[node.name] = step_of(
            so_far.constants, node, so_far.bounds, so_far.mode, so_far.slopes, sizes, wide=so_far.wide
        )
        return True

    def _follow(self, env: Env, node: Node) -> None:
        """Narrow the bounds of a call's value by forward bounds, if there are any."""
        box = self.relaxed.bounds.get(node.name)
        if self.forward is None or box is None or not box.dtype.is_floating_point:
            return
        pair = self.pairs[node.name] = self.forward.step(node, self.relaxed.bounds, self.pairs)
        for source in filter(self.relaxed.constants.used_once, self.relaxed.constants.sources(node)):
            self.pairs.pop(source, None)
        self.relaxed.bounds[node.name] = env[node.name] = self.forward.narrowed(pair, box)
        if not pair.loses:
            self.precision[node.name] = Precision.EXACT

    def _tighten(self, env: Env, node: Node) -> bool:
        """Tighten the operands of a loose step; did anything change?"""
        loose = self.own and self.relaxed.steps[node.name].loose
        if loose is False or (isinstance(loose, Tensor) and not bool(loose.any())):
            return False
        changed = False
        for source in dict.fromkeys(self.relaxed.constants.sources(node)):
            box = self.relaxed.bounds.get(source)
            if box is None or source in self.precision:
                continue
            if not box.dtype.is_floating_point:  # truth values have no coefficients
                continue
            fits = isinstance(loose, Tensor) and loose.shape == box.shape
            where = loose if fits and isinstance(loose, Tensor) else box.upper > box.lower
            if source in self.relaxed.read:
                where = where & self.relaxed.read[source]
                if not bool(where.any()):
                    continue
            found = (self.tighten or self._backward)(self.relaxed, source, where)
            self.relaxed.bounds[source] = env[source] = intersect(box, found)
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
        fixed = relaxed.program.graph.input_shape[0] is not None
        together = batch if fixed else max(1, min(batch, room // 2))
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
