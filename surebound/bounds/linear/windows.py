"""Backward passes from a convolution's units through the windows of the values that they depend on.

A unit at a position of an image-like value (B, C, H, W) depends on a window of every value before it, as long as all
operators in between are local (``rules.registry.Local``) or elementwise, sums of several paths among them. So every
position that has entries to bound becomes an example of its own: slopes, intercepts, errors and bounds are cut into
windows (P, C, h, w), 0 outside of the image, and the passes of ``backward`` run on those. They compute the numbers that
they would compute on the whole images, without the zeros.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.entries import LIVE, entries
from surebound.bounds.linear.places import Places, Window
from surebound.bounds.linear.steps import AffineStep
from surebound.graph import Node
from surebound.graph.walk import backward
from surebound.interval import Interval
from surebound.norm_ball import Ball
from surebound.rules.facts import Local
from surebound.rules.relax.join import Join
from surebound.rules.relax.lines import Index, Lines, Pulled, Relaxation, Slope

#: Arrays of a window's size that are kept for each call between a value and the input.
_KEPT = 8

#: Windows are worth it if they have at most this part of the entries of whole images.
_WORTH = 0.5

#: By how much operators on the way may spread a value's rows and columns, all together.
_STEPS = (1, 2, 4, 8)


@dataclass(frozen=True)
class WindowPlan:
    """The calls between a value and the input, and the windows of the values on the way.

    It is about the positions of the value whose rows and columns leave ``phase`` when divided by ``step``: where an
    operator spreads its input (``Local``), windows of others have other shapes.
    """

    relaxed: Relaxed
    source: str
    windows: dict[str, Window]  # by value, from the source back to the input
    images: dict[str, torch.Size]  # (B, C, H, W): their shapes, the input's as it is read
    phase: tuple[int, int] = (0, 0)
    step: int = 1

    @classmethod
    def all(cls, relaxed: Relaxed, source: str) -> list[WindowPlan]:
        """Plan the passes from all positions; none if windows do not help."""
        for step in _STEPS:
            first = cls.of(relaxed, source, (0, 0), step)
            if first is not None:
                phases = [(i, j) for i in range(step) for j in range(step)][1:]
                plans = [first, *(cls.of(relaxed, source, phase, step) for phase in phases)]
                return [plan for plan in plans if plan is not None] if None not in plans else []
        return []

    @classmethod
    def of(cls, relaxed: Relaxed, source: str, phase: tuple[int, int] = (0, 0), step: int = 1) -> WindowPlan | None:
        """Plan the passes; None if an operator on the way is not local or windows are hardly smaller than images."""
        graph, bounds = relaxed.program.graph, relaxed.bounds
        if len(bounds[source].shape) != 4 or relaxed.infeasible is not None or relaxed.cut:
            return None
        if isinstance(bounds[graph.input], Ball):  # windows are cut out of boxes
            return None
        windows: dict[str, Window] = {}
        views: set[torch.Size] = set()  # the input as it is read

        def visit(node: Node, window: Window | None) -> list[tuple[str, Window | None]]:
            sources, step = relaxed.constants.sources(node), relaxed.steps.get(node.name)
            if window is None:
                return [(name, None) for name in sources]
            windows[node.name] = window
            renamed = sources == (graph.input,) and _renames(step, bounds[node.name].shape)
            if graph.input in sources:
                views.add(bounds[node.name if renamed else graph.input].shape)
            before = window if renamed else _before(step, window)
            return [(name, before) for name in sources]

        def add(_: str, one: Window | None, other: Window | None) -> Window | None:
            return None if one is None or other is None else one.union(other)

        found: dict[str, Window | None] = {source: Window(phase, (step, step))}
        last = backward(graph.steps, found, visit, add, graph.input).get(graph.input)
        image = next(iter(views), torch.Size())
        if last is None or len(views) != 1 or len(image) != 4:
            return None
        windows[graph.input] = last
        images = {name: bounds[name].shape for name in windows} | {graph.input: image}
        plan = cls(relaxed, source, windows, images, phase, step)
        whole = sum(math.prod(shape[1:]) for shape in images.values())
        return plan if sum(plan.sizes()) <= _WORTH * whole else None

    def covers(self, row: Tensor, column: Tensor) -> Tensor:
        """Mark the positions (P,) that it is about."""
        return (row % self.step == self.phase[0]) & (column % self.step == self.phase[1])

    def places(self, example: Tensor, row: Tensor, column: Tensor) -> Places:
        """Return positions (P,) that it is about as its windows count them."""
        return Places(example, row // self.step, column // self.step)

    def sizes(self) -> list[int]:
        """Count the entries of one window of each value."""
        return [self.images[name][1] * math.prod(w.size) for name, w in self.windows.items()]

    def at(self, places: Places) -> Relaxed:
        """Return the relaxation of the windows of P positions, as P examples."""
        relaxed, graph = self.relaxed, self.relaxed.program.graph
        steps: dict[str, Relaxation] = {}
        needed = {self.source, graph.input}
        for name in self.windows:
            if name == graph.input:
                continue
            sources, step = relaxed.constants.sources(graph.by_name[name]), relaxed.steps[name]
            needed |= {each for each in sources if not relaxed.constants.used_once(each)}
            if isinstance(step, Lines):
                steps[name] = self._cut_lines(step, places, name, sources)
                if step.owes:
                    needed |= {each for each in sources if not relaxed.pays(each)}
            elif isinstance(step, AffineStep):
                steps[name] = self._cut_affine(step, places, name, sources[0])
            elif isinstance(step, Join):
                steps[name] = self._padded(self._cut_join(step, places, name), name, sources)
        bounds = {name: self._bounds(name, places) for name in needed}
        return dataclasses.replace(relaxed, bounds=bounds, steps=steps)

    def _bounds(self, name: str, places: Places) -> Interval:
        box, window, shape = self.relaxed.bounds[name], self.windows[name], self.images[name]
        return Interval(*(places.cut(end.reshape(shape), window) for end in (box.lower, box.upper)))

    def _cut(self, places: Places, name: str, value: Tensor) -> Tensor:
        """Cut the windows of a value out of a tensor of its size."""
        return places.cut(value.reshape(self.images[name]), self.windows[name])

    def _fitted(self, places: Places, name: str, inner: Window) -> Callable[[Tensor], Tensor]:
        """Return what makes coefficients of an inner window of a value those of its window, 0 outside of the image."""
        window, step = self.windows[name], self.relaxed.steps.get(name)
        margins = window.margins(inner)
        # Slopes that were cut are 0 outside, and so are the input's bounds.
        slopes = isinstance(step, Lines) and all(isinstance(s, Tensor) for s in (*step.lower, *step.upper))
        clears = name != self.relaxed.program.graph.input and not slopes
        outside = places.outside(self.images[name], window) if clears else None

        def fit(back: Tensor) -> Tensor:
            back = F.pad(back, margins) if any(margins) else back
            return back if outside is None else back.masked_fill(outside, 0)

        return fit

    def _cut_affine(self, step: AffineStep, places: Places, name: str, before: str) -> AffineStep:
        count, whole = len(places.example), self.images[before]
        given = step.arguments(whole[0])
        own = self.windows[name]
        inner, adjoint = _before(step, own), step.affine.local_adjoint
        if inner is None or adjoint is None:  # it renames the input's axes
            inner, adjoint = own, _unchanged
        elif (local := _local_of(step, given)) is not None and local.spread is not None:
            adjoint = partial(adjoint, start=(own.start, inner.start))
        fit = self._fitted(places, before, inner)
        inside = torch.Size((count, whole[1], *inner.size))
        error, absolute = step.error, step.absolute
        around = tuple(partial(self._cut, places, each) for each in (before, name))
        return dataclasses.replace(
            step.recentred(*around),
            affine=dataclasses.replace(step.affine, adjoint=partial(_fitted_adjoint, adjoint, fit, inside)),
            arguments=lambda _: given,
            in_shape=torch.Size((count, whole[1], *self.windows[before].size)),
            error=None if error is None else places.cut(error, own),
            absolute=None if absolute is None else absolute[places.example],
        )

    def _cut_lines(self, step: Lines, places: Places, name: str, sources: tuple[str, ...]) -> Relaxation:
        window = self.windows[name]

        def cut(value: Slope) -> Slope:
            return places.cut(value, window) if isinstance(value, Tensor) else value

        top = places.cut(step.upper_intercept, window)
        upper = tuple(cut(s) for s in step.upper)
        found = dataclasses.replace(
            step,
            shapes=(top.shape,) * len(sources),
            lower=upper if step.exact else tuple(cut(s) for s in step.lower),
            upper=upper,
            lower_intercept=None if step.lower_intercept is None else places.cut(step.lower_intercept, window),
            upper_intercept=top,
            absolute=step.absolute[places.example],
            free=None if step.free is None else places.cut(step.free, window),
        )
        return self._padded(found, name, sources)

    def _cut_join(self, step: Join, places: Places, name: str) -> Join:
        window = self.windows[name]
        constants = tuple(None if c is None else places.cut(c, window) for c in step.constants)
        return dataclasses.replace(step, constants=constants)

    def _padded(self, step: Relaxation, name: str, sources: tuple[str, ...]) -> Relaxation:
        window = self.windows[name]
        margins = tuple(self.windows[each].margins(window) for each in sources)
        return _Padded(step, margins) if any(any(each) for each in margins) else step


@dataclass(frozen=True)
class _Padded:
    """A step whose coefficients are padded to the windows of its operands, of which others read more."""

    step: Relaxation
    margins: tuple[list[int], ...]

    @property
    def owes(self) -> float:
        return self.step.owes

    @property
    def loose(self) -> Tensor | bool:
        return self.step.loose

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        pulled = self.step.pull(a, slope)
        pairs = zip(pulled.coefficients, self.margins, strict=True)
        return Pulled(tuple(F.pad(back, margins) for back, margins in pairs), pulled.offset)

    def select(self, index: Index) -> _Padded:
        return _Padded(self.step.select(index), self.margins)


def _fitted_adjoint(
    adjoint: Callable[..., Tensor],
    fit: Callable[[Tensor], Tensor],
    inside: torch.Size,
    a: Tensor,
    _: torch.Size,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Return the adjoint (S, P, C, h, w) over windows of shape ``inside`` (P, C, h, w), fitted into larger ones."""
    return fit(adjoint(a, inside, *args, **kwargs))


def _unchanged(a: Tensor, *_: Any, **__: Any) -> Tensor:
    return a


def _renames(step: Relaxation | None, out: torch.Size) -> bool:
    """Does a step give its operand's entries another shape (B, *out), and nothing else?"""
    if (
        not isinstance(step, AffineStep)
        or not step.affine.entrywise
        or step.constant is not None
        or step.error is not None
    ):
        return False
    count = math.prod(out[1:])
    if count != math.prod(step.in_shape[1:]):
        return False
    numbers = torch.arange(count, dtype=torch.float64)
    rest, kwargs = step.arguments(1)
    moved = step.apply(numbers.reshape(1, *step.in_shape[1:]), rest, kwargs)
    return moved.shape[1:] == out[1:] and torch.equal(moved.flatten(), numbers)


def _before(step: Relaxation | None, window: Window) -> Window | None:
    """Return the window of a call's operands that a window of its value depends on; None if it is all of them."""
    if isinstance(step, Lines):
        shape = step.upper_intercept.shape
        full = all(not isinstance(s, Tensor) or s.shape == shape for s in (*step.lower, *step.upper))
        return window if full and all(each == shape for each in step.shapes) else None
    if isinstance(step, Join):  # channels beside each other
        return window if step.dim == 1 and not step.stacked else None
    if not isinstance(step, AffineStep) or step.affine.local is None or len(step.in_shape) != 4:
        return None
    constant = step.constant if step.recentre is None else None
    if constant is not None and (constant.dim() < 3 or math.prod(constant.shape[-2:]) != 1):
        return None
    local = _local_of(step, step.arguments(step.in_shape[0]))
    return None if local is None else window.before(local)


def _local_of(step: AffineStep, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Local | None:
    rest, kwargs = given
    return None if step.affine.local is None else step.affine.local(*rest, **kwargs)


def entries_by_windows(relaxed: Relaxed, source: str, where: Tensor, memory: int) -> Interval | None:
    """Bound the entries ``where`` (B, C, H, W) of a value, infinite elsewhere; None where windows do not help."""
    fixed = relaxed.program.graph.input_shape[0] is not None
    plans = [] if fixed or torch.is_grad_enabled() else WindowPlan.all(relaxed, source)
    if not plans:
        return None
    like = relaxed.bounds[source].lower
    lower, upper = torch.full_like(like, -math.inf), torch.full_like(like, math.inf)
    counts = where.sum(1)  # (B, H, W)
    found = counts.nonzero()  # (P, 3)
    order = counts[tuple(found.t())].argsort(descending=True, stable=True)  # positions with as many entries together
    for plan in plans:
        item, sizes = relaxed.dtype_of(source).itemsize, plan.sizes()
        at_once = max(2, memory // (2 * LIVE * item * max(sizes)))  # rows
        kept = max(1, memory // (2 * _KEPT * item * sum(sizes)))
        rest = found[order]
        rest = rest[plan.covers(rest[:, 1], rest[:, 2])]
        while len(rest):
            most = int(counts[tuple(rest[0].tolist())])
            count = max(1, min(len(rest), kept, at_once // (2 * most)))
            (example, row, column), rest = rest[:count].t(), rest[count:]
            index = (example, slice(None), row, column)
            marked = where[index].unsqueeze(2).unsqueeze(3)  # (P, C, 1, 1)
            part = plan.at(plan.places(example, row, column))
            best = entries(part, source, marked, max(1, at_once // (2 * count)))
            lower[index] = best.lower.masked_fill(~marked, -math.inf).flatten(1)
            upper[index] = best.upper.masked_fill(~marked, math.inf).flatten(1)
    return Interval(lower, upper)
