"""Where to cut a range: where the function that reads it turns, else near its middle."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.narrowing import alone
from surebound.graph import Node
from surebound.graph.program import resolve, resolve_kwargs
from surebound.rules import find

#: No part is narrower than this much of its whole.
LEAST = 0.3  # heuristic: where to cut


def turns(relaxed: Relaxed, node: Node) -> tuple[float, ...]:
    """List where an elementwise function of one value bends or jumps, or turns from convex to concave."""
    rule = find(node.op)
    if not alone(relaxed, node) or rule is None or rule.activation is None:
        return ()
    source = relaxed.constants.sources(node)[0]
    args = tuple(resolve(v, {source: None}) for v in node.args)
    facts = rule.activation.bind(*args[1:], **resolve_kwargs(node.kwargs, {source: None}))
    return tuple(place for place in facts.turns if math.isfinite(place))


def cut_points(low: Tensor, high: Tensor, value: Tensor, places: Tensor) -> Tensor:
    """Return where (N, K) to cut between low and high (N, K), in their dtype.

    value (N, K): of the execution in question; places (N, K, T): where functions turn, NaN: nowhere.
    """
    left, width = low.double(), high.double() - low.double()
    middle = left + 0.5 * width
    between = 0.5 * (middle + torch.minimum(torch.maximum(value.double(), left), left + width))
    between = torch.minimum(torch.maximum(between, left + LEAST * width), left + (1 - LEAST) * width)
    inside = (places > (left + LEAST * width).unsqueeze(2)) & (places < (left + (1 - LEAST) * width).unsqueeze(2))
    away = torch.where(inside, (places - middle.unsqueeze(2)).abs(), torch.inf)
    nearest = away.argmin(2, keepdim=True)
    turn = places.gather(2, nearest)[:, :, 0]
    return torch.where(inside.any(2), turn, between).to(low.dtype)
