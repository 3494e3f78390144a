"""Which entries of the values inside a network a specification reads: bounds of the others change nothing.

A unit outside of the receptive field of the outputs that are asked for gets coefficient 0 in every backward pass from
them, so its bounds need not be tight. The pattern of coefficients goes back through the adjoints themselves, with NaN
for "not 0": whatever a NaN is added to or multiplied with, by a weight of 0 too, becomes one. More may be marked than
is read; and bounds of what is not marked are sound all the same, only wider.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surebound.bounds.constants import Constants, affine_in_one
from surebound.graph import Node
from surebound.graph.walk import backward
from surebound.rules import find
from surebound.rules.vjp import reduce_to


def entries_read(constants: Constants, rows: Tensor) -> dict[str, Tensor]:
    """Mark the entries (1, *value) that rows (..., K) of the outputs read, for values that they do not read all of."""
    graph = constants.program.graph
    if graph.input_shape[0] is not None:  # the network fixes its batch size: adjoints want as many examples
        return {}
    found: dict[str, Tensor] = {}

    def visit(node: Node, mask: Tensor | None) -> list[tuple[str, Tensor | None]]:
        sources = constants.sources(node)
        if mask is None:  # a value of unknown shape
            return [(name, None) for name in sources]
        if not bool(mask.all()):
            found[node.name] = mask
        return list(zip(sources, _before(constants, node, mask), strict=True))

    def add(_: str, one: Tensor | None, other: Tensor | None) -> Tensor | None:
        return None if one is None or other is None else one | other

    asked = (rows != 0).reshape(-1, rows.shape[-1]).any(0, keepdim=True)  # (1, K)
    start: dict[str, Tensor | None] = {graph.output: asked}
    backward(graph.steps, start, visit, add, graph.input)
    return found


def _before(constants: Constants, node: Node, mask: Tensor) -> list[Tensor | None]:
    """Return the masks of a call's operands from that of its value; None where the shape is not known."""
    sources, rule = constants.sources(node), find(node.op)
    shapes = [_one_example(constants, name) for name in sources]
    affine = affine_in_one(node, sources)
    coefficients = torch.where(mask, math.nan, 0.0).to(constants.program.graph.dtype).unsqueeze(0)  # (1, 1, *out)
    if affine is not None and shapes[0] is not None:
        rest, kwargs = constants.arguments(node, affine.position, 1)
        return [affine.adjoint(coefficients, shapes[0], *rest, **kwargs)[0].isnan()]
    if rule is not None and (rule.pointwise or rule.activation is not None):
        return [None if shape is None else reduce_to(coefficients, shape)[0].isnan() for shape in shapes]
    return [None if shape is None else mask.any().expand(shape) for shape in shapes]


def _one_example(constants: Constants, name: str) -> torch.Size | None:
    shape = constants.program.graph.shape_of(name)
    return None if shape is None else torch.Size((1, *(1 if n is None else n for n in shape[1:])))
