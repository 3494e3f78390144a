"""Rows of a reduced network for units of convolutions, by passes over the windows that they read.

The same numbers as passes over whole images give: what lies outside of a unit's window has coefficient 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.bounds.linear.backward import Form, Relaxed
from surebound.bounds.linear.entries import LIVE
from surebound.bounds.linear.places import Places
from surebound.bounds.linear.windows import WindowPlan
from surebound.bounds.reduced.network import Layer, Rows


def rows_by_windows(cut: Relaxed, source: str, place: Tensor, layers: tuple[Layer, ...], memory: int) -> Rows | None:
    """Bound entries ``place`` (R,) of a value by the input and the layers; None where windows do not help.

    ``cut``: the relaxation of one example in which nothing goes through the layers' entries.
    """
    plans = [] if cut.program.graph.input_shape[0] is not None else WindowPlan.all(cut, source)
    if not plans:
        return None
    height, width = plans[0].images[source][2:]
    pixel = place % (height * width)
    order = pixel.argsort(stable=True)
    counts = pixel.bincount(minlength=height * width)
    most = int(counts.max())
    channels = plans[0].images[source][1]
    item = cut.dtype_of(source).itemsize
    columns = _Columns(plans[0], layers)
    up = torch.zeros(len(place), columns.count, dtype=cut.dtype_of(source))
    low, offsets = torch.zeros_like(up), torch.zeros(2, len(place), dtype=torch.float64)
    starts = counts.cumsum(0) - counts
    for plan in plans:
        at_once = max(1, memory // (2 * LIVE * item * most * max(plan.sizes())))  # positions
        mine = counts.nonzero()[:, 0]
        mine = mine[plan.covers(mine // width, mine % width)]
        for pixels in torch.split(mine, at_once) if len(mine) else ():
            places = plan.places(torch.zeros_like(pixels), pixels // width, pixels % width)
            index = starts[pixels] + torch.arange(most).unsqueeze(1)  # (most, P) into ``order``
            valid = torch.arange(most).unsqueeze(1) < counts[pixels]
            unit = order[index.clamp(max=len(place) - 1)]  # (most, P)
            one_hot = torch.zeros(most, len(pixels), channels, dtype=up.dtype)
            one_hot.scatter_(2, (place[unit] // (height * width)).unsqueeze(2), 1.0)
            pairs = torch.cat([one_hot, -one_hot]).reshape(2 * most, len(pixels), channels, 1, 1)
            offset = torch.zeros(pairs.shape[:2], dtype=torch.float64)
            form = plan.at(places).pull(source, pairs, offset, record=[layer.name for layer in layers])
            both = columns.spread(form, plan, places).reshape(2, most, len(pixels), columns.count)
            up[unit[valid]], low[unit[valid]] = both[0][valid], -both[1][valid]
            offsets[:, unit[valid]] = form.offset.reshape(2, most, len(pixels))[:, valid]
    return Rows(up, up if torch.equal(up, low) else low, offsets[0], -offsets[1])


class _Columns:
    """The columns of a reduced network's v as entries of the input and of activations."""

    def __init__(self, plan: WindowPlan, layers: tuple[Layer, ...]) -> None:
        graph = plan.relaxed.program.graph
        inputs = plan.images[graph.input][1:].numel()
        self.column = {graph.input: torch.arange(inputs)}  # by value: the column (entries,) of each, or -1
        self.count = inputs
        for layer in layers:
            entries = plan.relaxed.bounds[layer.name].shape[1:].numel()
            own = torch.arange(self.count, self.count + len(layer))
            self.column[layer.name] = torch.full((entries,), -1).scatter(0, layer.place, own)
            self.count += len(layer)

    def spread(self, form: Form, plan: WindowPlan, places: Places) -> Tensor:
        """Return the coefficients over all columns: (S, P, V)."""
        graph = plan.relaxed.program.graph
        count = form.coefficients.shape[:2]
        found = form.coefficients.new_zeros(*count, self.count)
        for name, a in ((graph.input, form.coefficients), *form.recorded.items()):
            _, channels, height, width = plan.images[name]
            at, outside = places.pixels(plan.windows[name], height, width)
            pixel = at.reshape(count[1], 1, -1)  # (P, 1, h w)
            entry = pixel + torch.arange(channels).reshape(-1, 1) * (height * width)
            column = self.column[name][entry].flatten(1)  # (P, C h w)
            if outside is not None:
                hidden = outside.flatten(1).repeat(1, channels)
                column = column.masked_fill(hidden, -1)
            values = a.flatten(2).masked_fill(column < 0, 0)
            found.scatter_add_(2, column.clamp(min=0).expand(count[0], -1, -1), values)
        return found
