"""One unit inside a network as the output of a reduced network, from bounds of the whole that are there already.

A search asks about hundreds of units of one network over one box. Their relaxation is made once; each then costs the
rows of the unstable ReLUs in its own receptive field, over the inputs there.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import MEMORY
from surebound.bounds.linear.windows import WindowPlan
from surebound.bounds.reduced.network import Reduced, Rows
from surebound.bounds.reduced.parts import Patterns
from surebound.bounds.reduced.reduction import Reduction
from surebound.flags import exact_kernels
from surebound.graph import Node
from surebound.graph.walk import backward


def reduce_entry(relaxed: Relaxed, source: str, place: int, sign: int, memory: int = MEMORY) -> Reduced:
    """Reduce a network over one box to ``sign`` times one entry of a value, a flat place of it, as its only output.

    property: sound in the mode of the relaxation, whose bounds it takes as they are; inputs that the entry does not
              read are left out, so that the reduced box is that of the others
    """
    with torch.no_grad(), exact_kernels():
        before = _before(relaxed, source)
        upstream = {name: step for name, step in relaxed.steps.items() if name in before}
        part = replace(relaxed, steps=upstream, read=_read(relaxed, source, place))
        reduction = Reduction(memory)
        layers = reduction.layers_of(part)
        rows = reduction.rows_at(part, source, torch.tensor([place]), layers)
        box = relaxed.bounds[relaxed.program.graph.input]
        whole = Reduced.of(box, layers, rows if sign > 0 else _negated(rows))
        return Patterns(whole).part(torch.zeros(1, dtype=torch.int64))


def _before(relaxed: Relaxed, source: str) -> set[str]:
    """Name the calls that a value depends on, and its own."""
    found: set[str] = set()

    def visit(node: Node, _: bool) -> list[tuple[str, bool]]:
        found.add(node.name)
        return [(name, True) for name in relaxed.constants.sources(node)]

    graph = relaxed.program.graph
    backward(graph.steps, {source: True}, visit, lambda *_: True, graph.input)
    return found


def _read(relaxed: Relaxed, source: str, place: int) -> dict[str, Tensor]:
    """Mark the entries (1, *value) of the values before one that an entry of it reads, where windows tell."""
    height, width = (int(n) for n in relaxed.bounds[source].shape[-2:])
    at = torch.tensor([place % (height * width)])
    row, column = at // width, at % width
    plan = next((each for each in WindowPlan.all(relaxed, source) if bool(each.covers(row, column))), None)
    if plan is None:
        return {}
    places = plan.places(torch.zeros_like(at), row, column)
    found = {}
    for name, window in plan.windows.items():
        shape = plan.images[name]
        pixel, outside = places.pixels(window, shape[2], shape[3])
        inside = pixel if outside is None else pixel[~outside.flatten()]
        mask = torch.zeros(shape[2] * shape[3], dtype=torch.bool).index_fill_(0, inside, True)
        found[name] = mask.reshape(1, 1, *shape[2:]).expand(1, *shape[1:])
    del found[relaxed.program.graph.input]
    return found


def _negated(rows: Rows) -> Rows:
    up = -rows.low
    return Rows(up, up if rows.low is rows.up else -rows.up, -rows.low_offset, -rows.up_offset)
