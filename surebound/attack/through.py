"""Gradients through steps: the network computes what it computes, and a smooth function gives the slopes of its jumps.

The straight-through estimator (Bengio et al. 2013). Gradients only say where to look; every point is judged by the
network itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from surebound.attack.climb import Network
from surebound.graph import Node, Program
from surebound.graph.walk import Env, forward
from surebound.rules import find

Slope = Callable[[Tensor], Tensor]


def straight_through(program: Program) -> Network:
    """Return the network with gradients of smooth functions in place of its steps; itself if it has none."""
    found = {node.name: _surrogate(node) for node in program.graph.calls(lambda node: _surrogate(node) is not None)}
    slopes = {name: slope for name, slope in found.items() if slope is not None}
    if not slopes:
        return program

    def visit(node: Node, env: Env) -> Any:
        value = node.run(env)
        slope = slopes.get(node.name) or _after_step(node, slopes)
        if slope is None or not isinstance(value, Tensor):
            return value
        smooth = slope(env[next(node.refs())])
        return value.detach() + (smooth - smooth.detach())

    def run(x: Tensor) -> Tensor:
        graph = program.graph
        env: Env = {**program.parameters(), graph.input: x}
        outputs: Tensor = forward(graph.steps, env, visit, graph.output)[graph.output]
        return outputs

    return run


def _surrogate(node: Node) -> Slope | None:
    rule = find(node.op)
    return None if rule is None else rule.surrogate


def _after_step(node: Node, slopes: dict[str, Slope]) -> Slope | None:
    """Return the slope of a ReLU that reads a step: half, on both sides, or what is below 0 would give no direction."""
    rule = find(node.op)
    if rule is not None and rule.is_relu and next(node.refs()) in slopes:
        return lambda x: x / 2
    return None
