"""Do other outputs agree with a program's own, but for rounding?

The measure is ours: over one point, bounds that are sound for every execution leave room for any order of summation and
for nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.bounds.interval import propagate
from surebound.errors import TraceMismatchError
from surebound.graph import Program
from surebound.graph.fit import in_batches
from surebound.interval import Interval
from surebound.numerics import Soundness


def difference(program: Program, x: Tensor, expected: Tensor) -> float | None:
    """Return how far ``expected`` (B, K) at x (B, ...) is from the program's own; None if rounding explains it."""
    size = program.graph.input_shape[0] or len(x)
    with torch.no_grad():
        ours = in_batches(program, x, size)
        if expected.shape != ours.shape:
            raise TraceMismatchError(
                f"the program returns {tuple(ours.shape)}, the network {tuple(expected.shape)} for {len(x)} input(s)"
            )
        ends = in_batches(lambda part: _bounds(program, part), x, size)  # (B, 2, K)
    bounds = Interval(ends[:, 0], ends[:, 1])
    inside = bounds.contains(expected) & bounds.contains(ours) & expected.isfinite()
    if bool(inside.all()):
        return None
    return float((expected - ours).abs().nan_to_num(torch.inf).max())


def _bounds(program: Program, x: Tensor) -> Tensor:
    """Bound the outputs at single points x (B, ...): ends (B, 2, K)."""
    found = propagate(program, Interval.point(x), Soundness.DEPLOYED)
    return torch.stack([found.lower, found.upper], 1)
