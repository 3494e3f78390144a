"""Parts of a reduced network: some of its outputs, with the inputs and unstable ReLUs that they read and no others.

A unit of a convolution reads a window; its row is 0 elsewhere, and a dense pass multiplies with these zeros. Units that
lie close together read much the same, so that they are bounded together over a small network. What is left out has
coefficient 0 in every row: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from surebound.bounds.reduced.network import Reduced, Rows

#: An image is cut into so many tiles along each axis.
_TILES = 4


def tiles(place: Tensor, shape: torch.Size) -> list[Tensor]:
    """Group entries of a value (1, *shape) by where they lie: indices into their flat positions ``place`` (R,)."""
    if len(shape) != 4 or not len(place):
        return [torch.arange(len(place))]
    height, width = shape[2:]
    row, column = place // width % height, place % width
    tile = row * _TILES // height * _TILES + column * _TILES // width
    order = tile.argsort(stable=True)
    return list(torch.split(order, [n for n in tile.bincount().tolist() if n]))


class Patterns:
    """Where the rows of a reduced network are not 0, to cut parts out of it."""

    def __init__(self, reduced: Reduced) -> None:
        self.reduced = reduced
        self._layers = [_filled(layer.rows) for layer in reduced.layers]

    def part(self, index: Tensor) -> Reduced:
        """Return the outputs ``index`` (R,) over the columns that they depend on."""
        reduced, outputs = self.reduced, self.reduced.outputs.select(index)
        first, count = len(reduced.lower), len(reduced.lower) + reduced.unstable
        needed = torch.zeros(count, dtype=torch.bool)
        needed[: outputs.up.shape[1]] = _filled(outputs).any(0)
        end, chosen = count, list[Tensor]()
        for layer, filled in zip(reversed(reduced.layers), reversed(self._layers), strict=True):
            units = needed[end - len(layer) : end].nonzero()[:, 0]
            needed[: filled.shape[1]] |= filled[units].any(0)
            chosen.append(units)
            end -= len(layer)
        columns = needed.nonzero()[:, 0]
        inputs = columns[columns < first]
        layers = [layer.select(units, columns) for layer, units in zip(reduced.layers, reversed(chosen), strict=True)]
        return replace(
            reduced,
            lower=reduced.lower[inputs],
            upper=reduced.upper[inputs],
            ball=reduced.ball_of(inputs),
            layers=tuple(layer for layer in layers if len(layer)),
            outputs=outputs.over(columns),
        )


def parts(reduced: Reduced, groups: list[Tensor]) -> Iterator[tuple[Tensor, Reduced]]:
    """Yield groups (R,) of outputs and the part of the network that each reads; one group is the network itself."""
    if len(groups) == 1:
        yield groups[0], replace(reduced, outputs=reduced.outputs.select(groups[0]))
        return
    patterns = Patterns(reduced)
    for index in groups:
        yield index, patterns.part(index)


def _filled(rows: Rows) -> Tensor:
    return rows.up != 0 if rows.low is rows.up else (rows.up != 0) | (rows.low != 0)
