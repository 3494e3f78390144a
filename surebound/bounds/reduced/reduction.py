"""How a network over one box is reduced to its unstable ReLUs: layer by layer, with CROWN's bounds on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from surebound.bounds.linear.backward import Form, Opposite, Relaxed
from surebound.bounds.linear.entries import rows_at_once
from surebound.bounds.linear.intermediate import MEMORY, relax, rounding_matters
from surebound.bounds.linear.windows import entries_by_windows
from surebound.bounds.reduced.network import Layer, Reduced, Rows
from surebound.bounds.reduced.parts import parts, tiles
from surebound.bounds.reduced.passes import bounds_of_rows, rounding_of_rows
from surebound.bounds.reduced.window_rows import rows_by_windows
from surebound.errors import BoundError
from surebound.flags import exact_kernels
from surebound.graph import Program
from surebound.interval import Interval, intersect
from surebound.numerics import Soundness
from surebound.rules.relax.lines import Lines

#: Sound bounds (R,) of entries (R,) of a value, named by it and their places, from the reduced network that has them as
#: outputs; they are intersected with CROWN's. Asked for tile by tile.
Refine = Callable[[str, Tensor, Reduced], Interval]


def reduce_network(
    program: Program,
    box: Interval,
    c: Tensor,
    mode: Soundness,
    *,
    d: Tensor | None = None,
    memory: int = MEMORY,
    refine: Refine | None = None,
    wide: bool = False,
    known: Mapping[str, Interval] | None = None,
) -> Reduced:
    """Reduce a network over one box (1, ...) and rows c.z + d of its outputs, c (R, K), d (R,) float64 or 0.

    Bounds inside the network are CROWN's own, by windows or from the rows of the reduction itself; ``refine`` may
    tighten them. With coefficients in float64 if ``wide``, or, without ``refine``, if the rows are open mainly for
    rounding. ``known``: see ``relax``.
    """
    return reduce_relaxed(program, box, c, mode, d=d, memory=memory, refine=refine, wide=wide, known=known)[0]


def reduce_relaxed(
    program: Program,
    box: Interval,
    c: Tensor,
    mode: Soundness,
    *,
    d: Tensor | None = None,
    memory: int = MEMORY,
    refine: Refine | None = None,
    wide: bool = False,
    known: Mapping[str, Interval] | None = None,
) -> tuple[Reduced, Relaxed]:
    """Return ``reduce_network`` and the relaxation with the bounds of all values."""
    with torch.no_grad(), exact_kernels():
        found = _reduce(program, box, c, mode, d, Reduction(memory, refine), wide, known)
        settled = wide or refine is not None or mode is Soundness.NONE or box.dtype == torch.float64
        if settled:
            return found
        upper, paid = (v.unsqueeze(0) for v in rounding_of_rows(found[0]))
        offsets = torch.zeros_like(upper) if d is None else d.unsqueeze(0)
        if not bool(rounding_matters(program, box, c.unsqueeze(0), offsets, upper, paid, memory)):
            return found
        known = found[1].bounds
        del found
        return _reduce(program, box, c, mode, d, Reduction(memory), True, known)


def _reduce(
    program: Program,
    box: Interval,
    c: Tensor,
    mode: Soundness,
    d: Tensor | None,
    found: Reduction,
    wide: bool,
    known: Mapping[str, Interval] | None,
) -> tuple[Reduced, Relaxed]:
    relaxed = relax(program, box, mode, own=True, tighten=found.tighten, wide=wide, rows=c, known=known)
    layers = found.layers_of(relaxed)
    offsets = c.new_zeros(len(c), dtype=torch.float64) if d is None else d.double()
    # Both sides: coefficients that the network's dtype cannot hold cost each of them.
    a, above = relaxed.rows(c.unsqueeze(0), offsets.unsqueeze(0))
    _, below = relaxed.rows(-c.unsqueeze(0), -offsets.unsqueeze(0))
    outputs = found.rows(relaxed, program.graph.output, a, layers, torch.cat([above, below]))
    return Reduced.of(box, layers, outputs), relaxed


@dataclass
class Reduction:
    """The layers found so far, in the order of the network."""

    memory: int
    refine: Refine | None = None
    layers: dict[str, Layer] = field(default_factory=dict)  # by activation
    known: dict[str, tuple[Tensor, Rows]] = field(default_factory=dict)  # by value: places and their rows

    def tighten(self, relaxed: Relaxed, source: str, where: Tensor) -> Interval:
        """Bound the entries ``where`` (1, *value), infinite elsewhere."""
        local = entries_by_windows(relaxed, source, where, self.memory)
        if local is None:
            return self._by_rows(relaxed, source, where)
        if self.refine is None:
            return local
        # Rows are large: only of entries whose sign is still open.
        return intersect(local, self._by_rows(relaxed, source, where & (local.lower < 0) & (local.upper > 0)))

    def _by_rows(self, relaxed: Relaxed, source: str, where: Tensor) -> Interval:
        layers = self.layers_of(relaxed, source)
        place = where.flatten().nonzero()[:, 0]
        rows = self.rows_at(relaxed, source, place, layers)
        box = relaxed.bounds[relaxed.program.graph.input]
        reduced = Reduced.of(box, layers, rows)
        like = relaxed.bounds[source].lower
        lower, upper = torch.full_like(like, -math.inf).flatten(), torch.full_like(like, math.inf).flatten()
        for index, part in parts(reduced, tiles(place, like.shape)):
            found = bounds_of_rows(part)
            if self.refine is not None:
                found = intersect(found, self.refine(source, place[index], part))
            lower[place[index]], upper[place[index]] = found.lower, found.upper
        return Interval(lower.reshape(like.shape), upper.reshape(like.shape))

    def layers_of(self, relaxed: Relaxed, reader: str | None = None) -> tuple[Layer, ...]:
        """Return a layer for each activation that has unstable entries, without those that read ``reader``."""
        for name in relaxed.activations:
            if name not in self.layers and relaxed.source(name) != reader:
                self._add(relaxed, name)
        return tuple(layer for layer in self.layers.values() if len(layer))

    def _add(self, relaxed: Relaxed, name: str) -> None:
        step, source = relaxed.steps[name], relaxed.source(name)
        if not isinstance(step, Lines) or step.free is None or not isinstance(step.lower[0], Tensor):
            raise BoundError(f"{name} has no free slope")  # Relaxed.activations names only those that have
        free = step.free
        if source in relaxed.read:  # others have coefficient 0 in every row that is asked for
            free = free & relaxed.read[source]
        place = free.flatten().nonzero()[:, 0]
        rows = self.rows_at(relaxed, source, place, tuple(x for x in self.layers.values() if len(x)))
        box, (low, top) = relaxed.bounds[source], step.intercepts

        def at(value: Tensor | float) -> Tensor:
            return torch.as_tensor(value).expand(free.shape).flatten()[place]

        self.layers[name] = Layer(
            name=name,
            place=place,
            rows=rows,
            lower=at(box.lower),
            upper=at(box.upper),
            chord=at(step.upper[0]),
            top=at(top),
            bottom=at(low),
            slope=at(step.lower[0]),
            sides=step.free_range,
        )

    def rows_at(self, relaxed: Relaxed, source: str, place: Tensor, layers: tuple[Layer, ...]) -> Rows:
        """Return rows of some entries of a value; those that were needed for its bounds are not computed again."""
        if source in self.known:
            places, rows = self.known[source]
            return rows.select(torch.searchsorted(places, place))
        like = relaxed.bounds[source].lower
        local = rows_by_windows(_without(relaxed, layers), source, place, layers, self.memory) if len(place) else None
        if local is not None:
            self.known[source] = place, local
            return local
        parts = []
        for part in torch.split(place, max(1, rows_at_once(relaxed, source, self.memory) // 2)):
            one_hot = like.new_zeros(len(part), like.numel(), dtype=relaxed.dtype_of(source))
            one_hot = one_hot.scatter_(1, part.unsqueeze(1), 1.0)
            parts.append(self.rows(relaxed, source, one_hot.reshape(len(part), *like.shape), layers))
        found = _joined(parts) if parts else _no_rows(relaxed, layers)
        self.known[source] = place, found
        return found

    def rows(
        self,
        relaxed: Relaxed,
        source: str,
        a: Tensor,
        layers: tuple[Layer, ...],
        offset: Tensor | None = None,
    ) -> Rows:
        """Bound a.source, a (R, 1, *source), by affine functions of the input and the layers.

        ``offset`` (2R, 1): added to the rows and to minus the rows.
        """
        count, cut, names = len(a), _without(relaxed, layers), [layer.name for layer in layers]
        if offset is None:
            offset = a.new_zeros((2 * count, a.shape[1]), dtype=torch.float64)
        minus = Opposite([offset[count:]])
        form = cut.pull(source, a, offset[:count], record=names, opposite=minus)
        if minus.affine:
            up = self._columns(form, layers)
            return Rows(up, up, form.offset[:, 0], -cut.total(minus.offsets)[:, 0])
        form = cut.pull(source, torch.cat([a, -a]), offset, record=names)
        both, offset = self._columns(form, layers), form.offset[:, 0]
        up, low = both[:count], -both[count:]
        return Rows(up, up if torch.equal(up, low) else low, offset[:count], -offset[count:])

    def _columns(self, form: Form, layers: tuple[Layer, ...]) -> Tensor:
        """Return coefficients of the input and of the layers' entries: (R, V)."""
        count = len(form.offset)
        columns = [form.coefficients.flatten(1)]
        for layer in layers:
            if layer.name in form.recorded:
                columns.append(form.recorded[layer.name].flatten(1)[:, layer.place])
            else:
                columns.append(form.coefficients.new_zeros(count, len(layer)))
        return torch.cat(columns, 1)


def _without(relaxed: Relaxed, layers: tuple[Layer, ...]) -> Relaxed:
    """Return the relaxation in which nothing goes through the layers' entries: they are variables of their own."""
    return replace(relaxed, steps={**relaxed.steps, **{layer.name: _cut(relaxed, layer) for layer in layers}})


def _cut(relaxed: Relaxed, layer: Layer) -> Lines:
    """Return the step of an activation with slopes and intercepts of 0 at a layer's entries."""
    step = relaxed.steps[layer.name]
    if not isinstance(step, Lines) or step.free is None:
        raise BoundError(f"{layer.name} has no free slope")
    own = torch.zeros_like(step.free).flatten().index_fill(0, layer.place, True).reshape(step.free.shape)
    upper = torch.where(own, 0.0, step.upper[0])
    # Unstable entries that no row reads, if any, keep their lines.
    lower = upper if bool((own == step.free).all()) else torch.where(own, 0.0, step.lower[0])
    low = step.lower_intercept
    return replace(
        step,
        lower=(lower,),
        upper=(upper,),
        lower_intercept=None if low is None else torch.where(own, 0.0, low),
        upper_intercept=torch.where(own, 0.0, step.upper_intercept),
        free=None,
    )


def _joined(parts: list[Rows]) -> Rows:
    up = torch.cat([part.up for part in parts])
    affine = all(part.low is part.up for part in parts)
    low = up if affine else torch.cat([part.low for part in parts])
    return Rows(up, low, torch.cat([p.up_offset for p in parts]), torch.cat([p.low_offset for p in parts]))


def _no_rows(relaxed: Relaxed, layers: tuple[Layer, ...]) -> Rows:
    box = relaxed.bounds[relaxed.program.graph.input].lower
    none = box.new_zeros(0, box[0].numel() + sum(len(layer) for layer in layers))
    return Rows(none, none, torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
