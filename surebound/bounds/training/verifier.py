"""The verifier of predictor-verifier training: it chooses the dual variables of a network's activations, and learns to.

The dual bound of Dvijotham et al. 2018 has a dual variable for every activation; given them, every activation's inner
maximum is over its interval alone. Going backwards, a dual variable is a slope times the coefficient that arrives.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from surebound.bounds.constants import Constants
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.training.dual import relaxed_from
from surebound.bounds.training.engine import TrainingPass
from surebound.errors import BoundError
from surebound.graph import Node, Program
from surebound.interval import Interval
from surebound.numerics import Soundness, tiny
from surebound.rules import Context, find
from surebound.rules.relax.tilted import tilted_relu


def relu_calls(program: Program) -> list[Node]:
    """List the calls of a program that are ReLUs of values that vary with its input."""

    def wanted(node: Node) -> bool:
        rule = find(node.op)
        return node.varies and rule is not None and rule.is_relu

    return program.graph.calls(wanted)


def relu_inputs(program: Program) -> tuple[str, ...]:
    """Name the values that enter ReLUs, each once."""
    constants = Constants(program)
    return tuple(dict.fromkeys(constants.sources(node)[0] for node in relu_calls(program)))


def chord(box: Interval) -> Tensor:
    """Return the slope (B, *n) between the ends of a ReLU over a box: 1 where it is on, 0 where it is off."""
    rise = box.upper.clamp(min=0) - box.lower.clamp(min=0)
    return rise / (box.upper - box.lower).clamp(min=tiny(box.dtype))


class DualVerifier(nn.Module):
    """Slopes of every ReLU as linear functions of its chord's, for coefficients of either sign.

    One scale and one shift for every unit and sign, 1 and 0 at first: the dual network of Wong & Kolter (2018).
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.weights = nn.ParameterDict()
        for node in relu_calls(program):
            sizes = [n for n in (node.shape or ())[1:] if n is not None]
            if node.shape is None or len(sizes) != len(node.shape) - 1:
                raise BoundError(f"the verifier needs the shape of {node.name}, which the network leaves open")
            weight = torch.zeros(2, 2, *sizes, dtype=program.graph.dtype, device=program.device)
            weight[:, 0] = 1.0
            self.weights[node.name] = nn.Parameter(weight)  # (lower and upper, scale and shift, *n)

    def slopes(self, name: str, box: Interval) -> tuple[Tensor, Tensor]:
        """Choose the lower and the upper slope (B, *n) of a call over the bounds of its operand."""
        base, weight = chord(box), self.weights[name]
        return weight[0, 0] * base + weight[0, 1], weight[1, 0] * base + weight[1, 1]


def verified_by(program: Program, done: TrainingPass, box: Interval, verifier: DualVerifier | None) -> Relaxed:
    """Make backward steps with the verifier's slopes over the bounds that a pass has kept; with gradients in both.

    Without a verifier all dual variables are 0 (the constant verifier): the bound is that of intervals, elided.
    """
    relaxed, context = relaxed_from(program, done, box), Context(Soundness.NONE)
    for node in relu_calls(program):
        inside = relaxed.bounds[relaxed.source(node.name)]
        flat = torch.zeros_like(inside.lower)
        lower, upper = (flat, flat) if verifier is None else verifier.slopes(node.name, inside)
        relaxed.steps[node.name] = tilted_relu(context, inside, lower, upper)
    return relaxed
