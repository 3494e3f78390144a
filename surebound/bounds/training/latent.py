"""A network in two parts: up to a hidden value, which a box bounds, and from there, which runs on points of the box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.constants import environment
from surebound.errors import ConfigError
from surebound.graph import Graph, Node, Program
from surebound.graph.walk import Env, forward, freeing
from surebound.rules import find


def latent_value(graph: Graph, activations: int) -> str:
    """Name the value behind which `activations` activations are left: the result of the one before them."""
    found = graph.calls(_activates)
    if not 0 <= activations < len(found):
        raise ConfigError(
            f"the network has {len(found)} activations in a row: the attacked part may hold 0 to {len(found) - 1} of "
            f"them, got {activations}"
        )
    return found[len(found) - 1 - activations].name


def _activates(node: Node) -> bool:
    rule = find(node.op) if node.varies else None
    return rule is not None and rule.activation is not None


@dataclass(frozen=True)
class SecondPart:
    """The network from a hidden value to its output.

    norms: mean and variance that normalisations use instead of their running ones, by name of the call.
    """

    program: Program
    start: str
    norms: Mapping[str, tuple[Tensor, Tensor]]

    def __post_init__(self) -> None:
        known = {self.start}
        for node in self._calls():
            if not known.issuperset(self.program.graph.varying(node)):
                raise ConfigError(
                    f"the network cannot be cut at {self.start!r}: {node.source or node.name} reads an earlier value, "
                    "too. Choose another number of activations for the attacked part"
                )
            known.add(node.name)

    def __call__(self, value: Tensor) -> Tensor:
        """Return the outputs (R, K) for hidden values (R, ...)."""
        graph = self.program.graph
        env: Env = {**environment(self.program, value.shape[0]), self.start: value}
        output: Tensor = forward(freeing(self._calls(), (graph.output,)), env, self._visit)[graph.output]
        return output

    def frozen(self) -> SecondPart:
        """Return the same with statistics that have no gradients."""
        norms = {name: (mean.detach(), var.detach()) for name, (mean, var) in self.norms.items()}
        return SecondPart(self.program, self.start, norms)

    def _calls(self) -> list[Node]:
        before = self.program.graph.until_last(lambda node: node.name == self.start)
        return self.program.graph.calls(lambda node: node.varies and node.name not in before)

    def _visit(self, node: Node, env: Env) -> object:
        rule = find(node.op)
        if node.name in self.norms and rule is not None and rule.batch_norm is not None:
            x, *_ = args = node.arguments(env)[0]
            return rule.batch_norm.apply(x, *rule.batch_norm.replace(tuple(args), *self.norms[node.name])[1:])
        return node.run(env)


def linked(point: Tensor, lower: Tensor, upper: Tensor, link: float) -> Tensor:
    """Return the point (R, ...) of boxes [lower, upper] with gradients that go to their ends.

    Each end gets max(0, 1 - distance / (link · width)) of the gradient: all of it at the end itself, none farther away
    than that share of the width; a box without width gives half to each (Mao et al. 2023, "rectified linear" link).
    """
    with torch.no_grad():
        reach = link * (upper - lower)
        flat = reach <= 0
        safe = torch.where(flat, torch.ones_like(reach), reach)
        to_lower = torch.where(flat, 0.5, (1.0 - (point - lower) / safe).clamp_min(0.0))
        to_upper = torch.where(flat, 0.5, (1.0 - (upper - point) / safe).clamp_min(0.0))
    return point.detach() + to_lower * (lower - lower.detach()) + to_upper * (upper - upper.detach())
