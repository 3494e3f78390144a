"""A reduced network under signs, bounded anew from the multipliers that bounded the network it was cut from.

Bounds of a half are mostly made by the multipliers of its whole: a few steps from there do what a dozen from adaptive
slopes do. So every layer keeps those of both ends of its bounds, by the places of the units that they belong to.

property:  sound: any slopes and multipliers >= 0 give a valid bound (docs/soundness.md, Lemma 3)
reference: Wang et al. 2021 (beta-CROWN); Xu et al. 2021 (optimised bounds inside)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surebound.bounds.linear.intermediate import MEMORY
from surebound.bounds.reduced.demands import Demands, Source, demands
from surebound.bounds.reduced.inner import improved_bounds, plain
from surebound.bounds.reduced.narrowing import rebounded
from surebound.bounds.reduced.network import Layer, Reduced
from surebound.bounds.reduced.passes import Multipliers
from surebound.bounds.reduced.swing import Swing
from surebound.interval import Interval, intersect


@dataclass(frozen=True, eq=False)
class Inner:
    """The multipliers of bounds of entries at ``place`` (R,), ascending, over the entries of the layers before them."""

    place: Tensor
    before: tuple[tuple[str, Tensor], ...]  # layers by name, and the places of their entries
    m: Multipliers  # (E R, U): of one end of the bounds after the other
    sources: tuple[Source, ...] = ()  # of demands, with their multipliers
    weights: Tensor | None = None  # (E R, C)

    def start(self, part: Reduced, place: Tensor) -> Multipliers:
        """Return them for entries at ``place`` of a network with fewer, whose signs may be more."""
        row = self._rows(place)
        columns, first = [], 0
        later = {layer.name: layer.place for layer in part.layers}
        for name, places in self.before:
            kept = later.get(name, places[:0])
            columns.append(first + torch.searchsorted(places, kept))
            first += len(places)
        column = torch.cat(columns) if columns else row[:0]
        alphas, betas = (each[row][:, column] for each in (self.m.alphas, self.m.betas))
        return Multipliers(part.signs.expand(len(row), -1), alphas, betas)

    def weights_of(self, place: Tensor, sources: tuple[Source, ...]) -> Tensor:
        """Return the multipliers of demands for entries at ``place``; 0 of those that are new."""
        row = self._rows(place)
        found = torch.zeros(len(row), len(sources))
        for column, source in enumerate(sources):
            if self.weights is not None and source in self.sources:
                found[:, column] = self.weights[row, self.sources.index(source)]
        return found

    def _rows(self, place: Tensor) -> Tensor:
        row = torch.searchsorted(self.place, place)
        return torch.cat([row + start for start in range(0, len(self.m.alphas), len(self.place))])


def anew(
    reduced: Reduced, known: Mapping[str, Inner], first: Swing, later: Swing, asked: Sequence[Demands] | None = None
) -> tuple[Reduced, dict[str, Inner]]:
    """Bound the entries without a sign anew, layer by layer; return what did it, for parts of this network.

    ``known``: what did it for a network that this is a part of, by layer; ``later`` optimises from there, ``first``
    where nothing is known. ``asked``: what is demanded before each layer; else what its signs demand.
    """
    asked = demands(reduced) if asked is None else asked
    done, found = tuple[Layer, ...](), dict[str, Inner]()
    for layer, own in zip(reduced.layers, asked, strict=True):
        open_ = ((layer.lower < 0) & (layer.upper > 0)).nonzero()[:, 0]
        if (done or len(own)) and len(open_):
            part = replace(reduced, layers=done, outputs=layer.rows.select(open_))
            place, before = layer.place[open_], known.get(layer.name)
            start, swing = (plain(part), first) if before is None else (before.start(part, place), later)
            weights = None if before is None else before.weights_of(place, own.sources)
            best, m, weights = improved_bounds(part, start, swing, MEMORY, own, weights)
            box = intersect(Interval(layer.lower[open_], layer.upper[open_]), best)
            lower, upper = layer.lower.index_copy(0, open_, box.lower), layer.upper.index_copy(0, open_, box.upper)
            names = tuple((each.name, each.place) for each in done)
            found[layer.name] = Inner(place, names, m, own.sources, weights)
            layer = rebounded(layer, Interval(lower, upper))
        else:
            layer = rebounded(layer, Interval(layer.lower, layer.upper))
        done = (*done, layer)
    return replace(reduced, layers=done), found
