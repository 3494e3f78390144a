"""What a linear bound loses where, at the execution whose input it takes for the worst.

At every call the bound takes sum(a y) <= sum(a' x) + offset. At one execution the differences of the two sides add up
to the bound at its input minus the row there: each call is to blame for its own. Of calls with lines for every entry it
is known entry by entry; of others it is shared out by the operands' widths times their coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.narrowing import alone
from surebound.graph import Node
from surebound.graph.walk import Env, forward
from surebound.rules.relax.lines import Lines
from surebound.rules.vjp import reduce_to


def executed(relaxed: Relaxed, x: Tensor) -> dict[str, Tensor]:
    """Run the network at inputs x (N, *input), and return all of its values."""
    graph, constants = relaxed.program.graph, relaxed.constants.of(len(x))
    env: Env = {**constants, graph.input: x}
    found = forward(graph.keeping, env, lambda node, env: node.run(env))
    return {name: value for name, value in found.items() if isinstance(value, Tensor) and name not in constants}


def blame(
    relaxed: Relaxed,
    node: Node,
    a: Tensor,
    values: Mapping[str, Tensor],
    alpha: Tensor | None,
) -> list[tuple[str, Tensor]]:
    """Return what a call loses by each of its operands: the names, and (N, *operand).

    a (N, *out): the coefficients of its value in the bound; alpha (N, ...): lower slopes, if optimised.
    """
    step, sources = relaxed.steps[node.name], relaxed.constants.sources(node)
    pulled = step.pull(a.unsqueeze(0), None if alpha is None else alpha.unsqueeze(0))
    if isinstance(step, Lines) and len(pulled.coefficients) == len(sources):
        lost = _of_lines(relaxed, step, node, a, values, alpha)
        wide = [relaxed.bounds[name].upper > relaxed.bounds[name].lower for name in sources]
        return [
            (name, reduce_to(lost.unsqueeze(0), relaxed.bounds[name].shape)[0] * some)
            for name, some in zip(sources, wide, strict=True)
        ]
    own = pulled.offset[0] - (a * values[node.name]).double().flatten(1).sum(1)  # (N,)
    shares, total = [], torch.zeros_like(own)
    for name, coefficients in zip(sources, pulled.coefficients, strict=False):
        own = own + (coefficients[0] * values[name]).double().flatten(1).sum(1)
        width = (relaxed.bounds[name].upper - relaxed.bounds[name].lower).double()
        usual = a.abs().flatten(1).mean(1)  # an operand may matter though its coefficients are 0
        shares.append((coefficients[0].abs() + _along(usual, width)) * width)
        total = total + shares[-1].flatten(1).sum(1)
    part = (own / total).nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    return [(name, share * _along(part, share)) for name, share in zip(sources, shares, strict=False)]


def _along(each: Tensor, like: Tensor) -> Tensor:
    """Return numbers (N,) as a factor of (N, *value)."""
    return each.reshape(-1, *[1] * (like.dim() - 1))


def _of_lines(
    relaxed: Relaxed, step: Lines, node: Node, a: Tensor, values: Mapping[str, Tensor], alpha: Tensor | None
) -> Tensor:
    """Return (N, *out): how far the line that the bound uses lies above the value, times the coefficient."""
    lower, upper, (bottom, top) = list(step.lower), list(step.upper), step.intercepts
    if alpha is not None and step.free is not None:
        lower[0] = torch.where(step.free, alpha.clamp(*step.free_range), step.lower[0])
    if alpha is not None and step.fan is not None:
        (lower[0], bottom), (upper[0], top) = step.between(alpha.clamp(0, 1))
    sources = relaxed.constants.sources(node)
    inside = [values[name].clamp(relaxed.bounds[name].lower, relaxed.bounds[name].upper) for name in sources]
    y = values[node.name]
    if alone(relaxed, node):  # at the nearest operand inside of the part
        env = {**relaxed.constants.of(len(a)), sources[0]: inside[0]}
        y = node.run(env)
    above = sum((s * x for s, x in zip(upper, inside, strict=True)), top) - y
    below = sum((s * x for s, x in zip(lower, inside, strict=True)), bottom) - y
    return torch.where(a > 0, a * above, a * below).clamp(min=0).nan_to_num(0.0, 0.0, 0.0).double()
