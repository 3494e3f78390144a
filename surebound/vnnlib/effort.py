"""What one execution of a network costs: checks against onnxruntime try fewer inputs where each takes a second."""

from __future__ import annotations

import math

from surebound.bounds.constants import Constants, affine_in_one
from surebound.errors import BoundError
from surebound.graph import Node, Program

#: An affine operator, and a network, that sums more products than this is tried on fewer inputs.
HEAVY_OPERATOR, HEAVY_NETWORK = 100_000_000, 1_000_000_000


def multiplications(program: Program) -> int:
    """Count about how many products one execution sums: those of its operators that are affine in one operand."""
    constants = Constants(program)
    return sum(_products(constants, node) for node in program.graph.calls(lambda node: node.varies))


def heavy_network(program: Program) -> bool:
    """Say whether one execution of a network takes long."""
    return multiplications(program) > HEAVY_NETWORK


def heavy_sum(program: Program) -> bool:
    """Say whether a program is affine and takes long."""
    constants = Constants(program)

    def curved(node: Node) -> bool:
        return node.varies and affine_in_one(node, _sources(constants, node)) is None

    return not program.graph.calls(curved) and multiplications(program) > HEAVY_OPERATOR


def _products(constants: Constants, node: Node) -> int:
    sources = _sources(constants, node)
    affine = affine_in_one(node, sources)
    shape = constants.program.graph.shape_of(sources[0]) if affine is not None else None
    if affine is None or shape is None or node.shape is None:
        return 0
    rest, kwargs = constants.arguments(node, affine.position, 1)
    terms = affine.count(tuple(n or 1 for n in shape), *rest, **kwargs)
    return math.prod(n or 1 for n in node.shape) * terms


def _sources(constants: Constants, node: Node) -> tuple[str, ...]:
    """Name the varying operands of a call; none where there are no linear bounds of it."""
    try:
        return constants.sources(node)
    except BoundError:
        return ()
