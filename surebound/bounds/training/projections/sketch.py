"""Layer-wise dual bounds estimated by random projections (Wong et al. 2018, section 3.2).

With the upper line's slope on both sides, every value is an affine function of the input and of one error term per
unstable ReLU. A value's bound is its centre plus the l1 norm of that function's coefficients, and k Cauchy projections
of the coefficients go forward through the network as k columns, whatever its width. All coefficients share one
projection: sums of l1 norms are l1 norms. The columns of a sum of branches are the sum of their columns.
The result estimates bounds and is none: it is returned as an ``Estimate``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from surebound.bounds.constants import Constants
from surebound.bounds.interval import apply_rule
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import exactly_bounded
from surebound.bounds.linear.steps import AffineStep
from surebound.bounds.training.dual import bound_margins, bounded_calls, completed, training_step
from surebound.bounds.training.engine import TrainingPass
from surebound.bounds.training.projections.cauchy import cauchy, estimated_norms
from surebound.bounds.training.projections.estimate import Estimate, Projections
from surebound.bounds.training.projections.stages import Columns, LayerStage
from surebound.graph import Node, Program
from surebound.graph.walk import forward
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Context, find, layer_of
from surebound.rules.layouts import channels_last
from surebound.rules.relax.ends import within
from surebound.rules.relax.join import Join
from surebound.rules.relax.lines import Lines

#: What a pass with gradients holds, in units of the columns of all values: those of weighted layers, and as much again
#: on the way back.
_HELD = 1


def estimated_margins(
    program: Program, done: TrainingPass, box: Interval, labels: Tensor, projections: Projections
) -> Estimate:
    """Estimate the dual bounds of z_k - z_true (B, K), 0 in the true class's column, with gradients.

    done: a training pass that has kept ``values_to_keep(program)``: its interval bounds hold, so no estimate may leave
    them, and where they are exact nothing is estimated. The last pass, for the margins, is exact given the estimates.
    """
    bounds = {**done.kept, program.graph.input: box}
    start = Relaxed(program, Soundness.NONE, Constants(program, done.norms), bounds, {}, "upper")
    tasks, noise = _plan(start, projections)
    parts = _blocks(start, projections)
    if len(parts) == 1:
        walk = _Walk(replace(start, bounds=dict(bounds), steps={}), noise, tasks)
        walk.run()
        return Estimate(bound_margins(completed(walk.relaxed), labels))
    ends = [_estimated(start, noise, tasks, at) for at in parts]
    refined = {
        name: Interval(*(torch.cat([part[2 * i + end] for part in ends]) for end in (0, 1)))
        for i, name in enumerate(tasks.names)
    }
    relaxed = completed(replace(start, bounds={**bounds, **refined}, steps={}))
    return Estimate(bound_margins(relaxed, labels))


def _plan(start: Relaxed, projections: Projections) -> tuple[_Tasks, dict[str, Tensor]]:
    """Find what there is to refine, and draw the errors' columns. Without gradients: a walk makes steps of its own."""
    for batch in (1, start.batch):  # what is computed once for a batch's size keeps its gradients
        start.constants.of(batch)
    with torch.no_grad():
        plain = {name: box.select(Tensor.detach) for name, box in start.bounds.items()}
        relaxed = completed(replace(start, bounds=plain, steps={}))
        return _Tasks.of(relaxed), _draw(relaxed, projections)


@dataclass(frozen=True)
class _Tasks:
    """The values and entries that a walk has to refine."""

    estimated: dict[str, list[str]]  # by name of a call: the values whose norms are estimated before it
    following: list[str]  # activations whose value's bounds follow from those
    signs: set[str]  # of those whose norms are estimated: values that only ReLUs read, and whose bounds are not read

    @property
    def names(self) -> list[str]:
        return [*(name for names in self.estimated.values() for name in names), *self.following]

    @classmethod
    def of(cls, relaxed: Relaxed) -> _Tasks:
        tasks, known, refined = cls({}, [], set()), exactly_bounded(relaxed.constants), set[str]()
        readers: dict[str, list[Node]] = {}
        for node in bounded_calls(relaxed.constants):
            sources, rule = relaxed.constants.sources(node), find(node.op)
            for name in sources:
                readers.setdefault(name, []).append(node)
            if relaxed.steps[node.name].loose is not False:
                new = [n for n in dict.fromkeys(sources) if n not in known and n in relaxed.bounds]
                if new:
                    tasks.estimated[node.name] = new
                    known.update(new)
                    refined.update(new)
            if rule is not None and rule.activation is not None and sources[0] in refined:
                tasks.following.append(node.name)
                known.add(node.name)
                refined.add(node.name)

        def bounds_are_read(name: str) -> bool:
            return any(relaxed.steps[node.name].loose is not False for node in readers.get(name, ()))

        for names in tasks.estimated.values():
            for name in names:
                if all(_is_relu(node) and not bounds_are_read(node.name) for node in readers[name]):
                    tasks.signs.add(name)
        return tasks


def _is_relu(node: Node) -> bool:
    rule = find(node.op)
    return rule is not None and rule.is_relu


def _draw(relaxed: Relaxed, projections: Projections) -> dict[str, Tensor]:
    """Draw columns (k, 1, *value) of the input's errors and of those that calls add, once for the whole batch."""
    like = relaxed.bounds[relaxed.program.graph.input].center
    names = [relaxed.program.graph.input]
    names += [n.name for n in bounded_calls(relaxed.constants) if not isinstance(relaxed.steps[n.name], AffineStep)]
    return {
        name: cauchy((projections.count, 1, *relaxed.bounds[name].shape[1:]), projections.generator, like)
        for name in names
        if name in relaxed.bounds
    }


def _blocks(relaxed: Relaxed, projections: Projections) -> list[slice]:
    """Cut the batch so that columns take about the memory allowed; all at once if the network fixes its batch size."""
    batch = relaxed.batch
    shapes = [node.shape for node in bounded_calls(relaxed.constants) if node.shape is not None]
    size = sum(math.prod(n or 1 for n in shape[1:]) for shape in shapes)
    item = relaxed.bounds[relaxed.program.graph.input].lower.element_size()
    step = max(1, projections.memory // (item * projections.count * max(1, size) * _HELD))
    if relaxed.program.graph.input_shape[0] is not None:
        step = batch
    return [slice(i, min(i + step, batch)) for i in range(0, batch, step)]


def _estimated(relaxed: Relaxed, noise: dict[str, Tensor], tasks: _Tasks, at: slice) -> tuple[Tensor, ...]:
    """Estimate the ends of some examples' values; with gradients, computed again in the backward pass."""
    bounds = {n: b.select(itemgetter(at)) for n, b in relaxed.bounds.items()}

    def walk() -> tuple[Tensor, ...]:
        return _Walk(replace(relaxed, bounds=dict(bounds), steps={}), noise, tasks).run()

    if not torch.is_grad_enabled():
        return walk()
    again: tuple[Tensor, ...] = torch.utils.checkpoint.checkpoint(walk, use_reentrant=False, preserve_rng_state=False)
    return again


@dataclass(frozen=True)
class _Form:
    """center (B, *value) and columns (k, B, *value)."""

    center: Tensor
    columns: Columns


class _Walk:
    """One walk forward with columns, over interval bounds."""

    def __init__(self, relaxed: Relaxed, noise: dict[str, Tensor], tasks: _Tasks) -> None:
        self.relaxed, self.noise, self.tasks = relaxed, noise, tasks
        self.estimated = {name for names in self.tasks.estimated.values() for name in names}

    def run(self) -> tuple[Tensor, ...]:
        relaxed, graph = self.relaxed, self.relaxed.program.graph
        box = relaxed.bounds[graph.input]
        start = Columns(None, None, box.radius, self.noise[graph.input])
        bounded = {node.name for node in bounded_calls(relaxed.constants)}
        waiting = set(self.tasks.estimated)

        def visit(node: Node, forms: dict[str, _Form]) -> _Form | None:
            if node.name not in bounded:
                return None
            for source in self.tasks.estimated.get(node.name, ()):
                self._estimate(source, forms)
            waiting.discard(node.name)
            if node.name in self.tasks.following:
                self._follow(node)
            if not waiting:  # no later value needs a form
                return None
            relaxed.steps[node.name] = training_step(relaxed, node)
            return self._step(node, forms)

        forward(relaxed.constants.steps(), {graph.input: _Form(box.center, start)}, visit)
        refined = [relaxed.bounds[name] for name in self.tasks.names]
        return tuple(end for box in refined for end in (box.lower, box.upper))

    def _estimate(self, source: str, forms: dict[str, _Form]) -> None:
        form = forms[source]
        radius = form.columns.norms
        if radius is None:
            radius, columns = estimated_norms(form.columns.tensor)
            forms[source] = _Form(form.center, Columns(columns))
        self.relaxed.bounds[source] = within(self.relaxed.bounds[source], form.center, radius)

    def _follow(self, node: Node) -> None:
        """Bound an activation's value by the bounds of its operand."""
        env = {**self.relaxed.constants.of(self.relaxed.batch), **self.relaxed.bounds}
        self.relaxed.bounds[node.name] = apply_rule(Context(Soundness.NONE), node, *node.arguments(env))

    def _step(self, node: Node, forms: dict[str, _Form]) -> _Form:
        step, sources = self.relaxed.steps[node.name], self.relaxed.constants.sources(node)
        operands = [forms.get(name) for name in sources]
        if any(form is None for form in operands):
            return self._fresh(node)
        known = [form for form in operands if form is not None]
        if isinstance(step, AffineStep):
            rest, kwargs = step.arguments(known[0].center.shape[0])
            weighted = step.affine.position == 0 and layer_of(node, rest[2:]) is not None
            laid_out = channels_last if weighted else Tensor.contiguous  # others may mind the order in memory
            center = step.apply(laid_out(known[0].center), rest, kwargs)
            return _Form(center, self._affine(node, step, known[0].columns, rest, center.shape[1:]))
        if isinstance(step, Lines) and step.exact:
            return self._between(node, step, known)
        if isinstance(step, Join) and all(c is None for c in step.constants):
            parts = [form.columns.tensor for form in known]
            columns = step.forward([part.flatten(0, 1) for part in parts])
            center = step.forward([form.center for form in known])
            return _Form(center, Columns(columns.reshape(*parts[0].shape[:2], *center.shape[1:])))
        return self._fresh(node)

    def _affine(
        self, node: Node, step: AffineStep, columns: Columns, rest: tuple[Any, ...], out: torch.Size
    ) -> Columns:
        rule = find(node.op)
        if rule is not None and rule.move is not None and not rule.move.channelwise and len(out) == 1:
            return columns.flattened()
        if step.affine.position == 0 and rest:
            layer, estimate = layer_of(node, rest[2:]), node.name in self.estimated
            stage = LayerStage.of(layer, rest, columns, out, estimate, self._wanted(node.name))
            if stage is not None:
                return stage.apply(columns, rest[0])
        return Columns(_through(step, columns.tensor))

    def _wanted(self, name: str) -> Tensor | None:
        """Mark where (B, *value) an estimate is of use: not where only the sign is, and intervals have settled that."""
        if name not in self.tasks.signs:
            return None
        box = self.relaxed.bounds[name]
        return (box.lower < 0) & (box.upper > 0)

    def _between(self, node: Node, lines: Lines, operands: list[_Form]) -> _Form:
        """Go through parallel lines: multiply by the slope; half the distance between them is a new error term."""
        low, high = lines.intercepts
        center: Any = (low + high) / 2
        for slope, form in zip(lines.upper, operands, strict=True):
            center = center + slope * form.center
        fresh = (None, None) if lines.free is None else ((high - low) / 2, self.noise[node.name])
        if len(operands) == 1 and isinstance(lines.upper[0], Tensor):
            return _Form(center, Columns(operands[0].columns.settled.u, lines.upper[0], *fresh))
        columns: Any = 0.0
        for slope, form in zip(lines.upper, operands, strict=True):
            columns = columns + slope * form.columns.tensor
        if fresh[0] is not None and fresh[1] is not None:
            columns = torch.addcmul(columns, fresh[0], fresh[1])
        return _Form(center, Columns(columns))

    def _fresh(self, node: Node) -> _Form:
        """Make the form of a value of which only its interval is known."""
        box = self.relaxed.bounds[node.name]
        return _Form(box.center, Columns(None, None, box.radius, self.noise[node.name]))


def _through(step: AffineStep, columns: Tensor) -> Tensor:
    flat = columns.flatten(0, 1)
    if flat.dim() == 4 and flat.shape[1] > 1:
        flat = flat.contiguous(memory_format=torch.channels_last)
    out = step.linear(flat)
    return out.reshape(*columns.shape[:2], *out.shape[1:])
