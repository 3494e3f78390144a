"""Backward passes from a convolution's units through the windows of the values that they depend on.

A unit at a position of an image-like value (B, C, H, W) depends on a window of every value before it, as long as all
operators in between are local (``rules.registry.Local``) or elementwise. So every position that has entries to bound
becomes an example of its own: slopes, intercepts, errors and bounds are cut into windows (P, C, h, w), 0 outside of the
image, and the passes of ``backward`` run on those. They compute the numbers that they would compute on the whole
images, without the zeros.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.entries import LIVE, entries
from surebound.bounds.linear.steps import AffineStep
from surebound.interval import Interval
from surebound.rules.facts import Local
from surebound.rules.relax.lines import Lines, Relaxation

#: Arrays of a window's size that are kept for each call between a value and the input.
_KEPT = 8

#: Windows are worth it if they have at most this part of the entries of whole images.
_WORTH = 0.5


@dataclass(frozen=True)
class Window:
    """Along each of two axes: ``size`` entries from ``stride`` times the position plus ``start`` on."""

    start: tuple[int, int] = (0, 0)
    stride: tuple[int, int] = (1, 1)
    size: tuple[int, int] = (1, 1)

    def before(self, local: Local) -> Window:
        """Return the window that a local operator reads to compute this one."""
        each = list(
            zip(
                self.start,
                self.stride,
                self.size,
                local.stride,
                local.pad,
                local.kernel,
                local.dilation,
                strict=True,
            )
        )
        return Window(
            _pair([o * s - p for o, _, _, s, p, _, _ in each]),
            _pair([t * s for _, t, _, s, _, _, _ in each]),
            _pair([(n - 1) * s + d * (k - 1) + 1 for _, _, n, s, _, k, d in each]),
        )


def _pair(values: list[int]) -> tuple[int, int]:
    return values[0], values[1]


@dataclass(frozen=True)
class Places:
    """P positions of a value: which example, row and column."""

    example: Tensor  # (P,)
    row: Tensor
    column: Tensor
    _found: dict[tuple[Window, int, int], tuple[Tensor, Tensor | None]] = field(default_factory=dict, repr=False)

    def cut(self, value: Tensor, window: Window) -> Tensor:
        """Cut the windows (P, C, h, w) out of a value (B, C, H, W), 0 outside, in NHWC order."""
        at, outside = self._pixels(window, *value.shape[2:])
        pixels = value.movedim(1, -1).reshape(-1, value.shape[1])  # (B H W, C)
        cut = pixels.index_select(0, at).view(-1, *window.size, value.shape[1])  # (P, h, w, C)
        if outside is not None:
            cut.masked_fill_(outside.unsqueeze(3), 0)
        return cut.movedim(-1, 1)

    def outside(self, shape: torch.Size, window: Window) -> Tensor | None:
        """Mark where (P, 1, h, w) windows of a value (B, C, H, W) leave it; None: nowhere."""
        outside = self._pixels(window, *shape[2:])[1]
        return None if outside is None else outside.unsqueeze(1)

    def _pixels(self, window: Window, height: int, width: int) -> tuple[Tensor, Tensor | None]:
        """Return the pixels (P h w,) of (B, H, W) in windows, and where (P, h, w) there is none (None: nowhere)."""
        key = window, height, width
        if key not in self._found:
            rows, in_rows = _along(self.row, window, 0, height)  # (P, h)
            columns, in_columns = _along(self.column, window, 1, width)
            flat = (self.example.view(-1, 1, 1) * height + rows.unsqueeze(2)) * width + columns.unsqueeze(1)
            outside = ~(in_rows.unsqueeze(2) & in_columns.unsqueeze(1))
            self._found[key] = flat.flatten(), outside if bool(outside.any()) else None
        return self._found[key]


def _along(at: Tensor, window: Window, axis: int, length: int) -> tuple[Tensor, Tensor]:
    """Return indices (P, size) along an axis, moved inside, and which of them were."""
    first = at * window.stride[axis] + window.start[axis]
    index = first.unsqueeze(1) + torch.arange(window.size[axis], device=at.device)
    return index.clamp(0, length - 1), (index >= 0) & (index < length)


@dataclass(frozen=True)
class WindowPlan:
    """The calls between a value and the input, and the windows of the values on the way."""

    relaxed: Relaxed
    source: str
    windows: dict[str, Window]  # by value, from the source back to the input

    @classmethod
    def of(cls, relaxed: Relaxed, source: str) -> WindowPlan | None:
        """Plan the passes; None if an operator on the way is not local or windows are hardly smaller than images."""
        graph, name = relaxed.program.graph, source
        windows = {source: Window()}
        if len(relaxed.bounds[source].shape) != 4 or relaxed.infeasible is not None or relaxed.splits:
            return None
        while name != graph.input:
            before = _before(relaxed.steps.get(name), windows[name])
            sources = relaxed.constants.sources(graph.by_name[name])
            if before is None or len(sources) != 1:
                return None
            name = sources[0]
            windows[name] = before
        plan = cls(relaxed, source, windows)
        whole = sum(math.prod(relaxed.bounds[name].shape[1:]) for name in windows)
        return plan if sum(plan.sizes()) <= _WORTH * whole else None

    def sizes(self) -> list[int]:
        """Count the entries of one window of each value."""
        return [self.relaxed.bounds[name].shape[1] * math.prod(w.size) for name, w in self.windows.items()]

    def at(self, places: Places) -> Relaxed:
        """Return the relaxation of the windows of P positions, as P examples."""
        relaxed, graph = self.relaxed, self.relaxed.program.graph
        steps: dict[str, Relaxation] = {}
        needed = {self.source, graph.input}
        for name in self.windows:
            if name == graph.input:
                continue
            (before,) = relaxed.constants.sources(graph.by_name[name])
            step = relaxed.steps[name]
            if isinstance(step, Lines):
                steps[name] = _cut_lines(step, places, self.windows[name])
                if step.owes and not relaxed.pays(before):
                    needed.add(before)
            elif isinstance(step, AffineStep):
                steps[name] = self._cut_affine(step, places, name, before)
        bounds = {name: self._bounds(name, places) for name in needed}
        return dataclasses.replace(relaxed, bounds=bounds, steps=steps)

    def _bounds(self, name: str, places: Places) -> Interval:
        box, window = self.relaxed.bounds[name], self.windows[name]
        return Interval(places.cut(box.lower, window), places.cut(box.upper, window))

    def _cut_affine(self, step: AffineStep, places: Places, name: str, before: str) -> AffineStep:
        count, whole = len(places.example), self.relaxed.bounds[before].shape
        given = step.arguments(whole[0])
        clears = before != self.relaxed.program.graph.input and not isinstance(self.relaxed.steps[before], Lines)
        outside = places.outside(whole, self.windows[before]) if clears else None
        adjoint = partial(_without, step.affine.local_adjoint, outside)
        error, absolute = step.error, step.absolute
        around = partial(places.cut, window=self.windows[before]), partial(places.cut, window=self.windows[name])
        return dataclasses.replace(
            step.recentred(*around),
            affine=dataclasses.replace(step.affine, adjoint=adjoint),
            arguments=lambda _: given,
            in_shape=torch.Size((count, whole[1], *self.windows[before].size)),
            error=None if error is None else places.cut(error, self.windows[name]),
            absolute=None if absolute is None else absolute[places.example],
        )


def _without(adjoint: Any, outside: Tensor | None, a: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the adjoint, with no coefficients for what is only padding."""
    back: Tensor = adjoint(a, *args, **kwargs)
    return back if outside is None else back.masked_fill(outside, 0)


def _before(step: Relaxation | None, window: Window) -> Window | None:
    """Return the window of a call's operand that a window of its value depends on; None if it is the whole operand."""
    if isinstance(step, Lines):
        shape = step.upper_intercept.shape
        full = all(isinstance(s, Tensor) and s.shape == shape for s in (*step.lower, *step.upper))
        return window if full and step.shapes == (shape,) else None
    if not isinstance(step, AffineStep) or step.affine.local is None or len(step.in_shape) != 4:
        return None
    constant = step.constant if step.recentre is None else None
    if constant is not None and (constant.dim() < 3 or math.prod(constant.shape[-2:]) != 1):
        return None
    rest, kwargs = step.arguments(step.in_shape[0])
    local = step.affine.local(*rest, **kwargs)
    return None if local is None else window.before(local)


def _cut_lines(step: Lines, places: Places, window: Window) -> Lines:
    def cut(value: Any) -> Any:
        return places.cut(value, window)

    top = cut(step.upper_intercept)
    upper = tuple(cut(s) for s in step.upper)
    return dataclasses.replace(
        step,
        shapes=(top.shape,),
        lower=upper if step.exact else tuple(cut(s) for s in step.lower),
        upper=upper,
        lower_intercept=None if step.lower_intercept is None else cut(step.lower_intercept),
        upper_intercept=top,
        absolute=step.absolute[places.example],
        free=None if step.free is None else cut(step.free),
    )


def entries_by_windows(relaxed: Relaxed, source: str, where: Tensor, memory: int) -> Interval | None:
    """Bound the entries ``where`` (B, C, H, W) of a value, infinite elsewhere; None where windows do not help."""
    plan = None if torch.is_grad_enabled() else WindowPlan.of(relaxed, source)
    if plan is None or relaxed.program.graph.input_shape[0] is not None:
        return None
    like = relaxed.bounds[source].lower
    lower, upper = torch.full_like(like, -math.inf), torch.full_like(like, math.inf)
    counts = where.sum(1)  # (B, H, W)
    found = counts.nonzero()  # (P, 3)
    order = counts[tuple(found.t())].argsort(descending=True, stable=True)  # positions with as many entries together
    item, sizes = relaxed.dtype_of(source).itemsize, plan.sizes()
    at_once = max(2, memory // (2 * LIVE * item * max(sizes)))  # rows
    kept = max(1, memory // (2 * _KEPT * item * sum(sizes)))
    rest = found[order]
    while len(rest):
        most = int(counts[tuple(rest[0].tolist())])
        count = max(1, min(len(rest), kept, at_once // (2 * most)))
        places, rest = Places(*rest[:count].t()), rest[count:]
        index = (places.example, slice(None), places.row, places.column)
        marked = where[index].unsqueeze(2).unsqueeze(3)  # (P, C, 1, 1)
        best = entries(plan.at(places), source, marked, max(1, at_once // (2 * count)))
        lower[index] = best.lower.masked_fill(~marked, -math.inf).flatten(1)
        upper[index] = best.upper.masked_fill(~marked, math.inf).flatten(1)
    return Interval(lower, upper)
