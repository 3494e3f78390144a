"""Several constraints at once: a mixture of their linear bounds that is negative everywhere refutes them together.

If every r_i <= A_i x + b_i over a box, then min_i r_i <= sum_i m_i (A_i x + b_i) for any weights m >= 0 of sum 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import UNDERFLOW, several_sums

_STEPS = 40


def mixed_upper(
    a: Tensor, b: Tensor, box: Interval, valid: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Bound the best mixture found (B,), and return its weights (B, S); or bound the mixture of given weights >= 0.

    a (S, B, *input) and b (S, B): the rows' bounds; valid (B, S): rows that there are.
    """
    wide = a.flatten(2).double().transpose(0, 1)  # (B, S, n)
    offset = b.t().double()  # (B, S)
    offset = torch.where(valid, offset, torch.zeros_like(offset))
    wide = torch.where(valid.unsqueeze(2), wide, torch.zeros_like(wide))
    low, high = box.lower.flatten(1).double(), box.upper.flatten(1).double()
    if weights is None:
        weights = _weights(wide, offset, low, high, valid)
    return _sound(wide, offset, low, high, weights), weights


def _largest(wide: Tensor, offset: Tensor, low: Tensor, high: Tensor, weights: Tensor) -> Tensor:
    mixed = torch.einsum("bs,bsn->bn", weights, wide)
    return (weights * offset).sum(1) + torch.where(mixed > 0, mixed * high, mixed * low).sum(1)


def _weights(wide: Tensor, offset: Tensor, low: Tensor, high: Tensor, valid: Tensor) -> Tensor:
    """Find weights by exponentiated gradient, started from equal ones; return the best that were seen."""
    start = torch.where(valid, 0.0, -torch.inf).double()
    weights = start.softmax(1)
    alone = offset + torch.where(wide > 0, wide * high.unsqueeze(1), wide * low.unsqueeze(1)).sum(2)
    alone = torch.where(valid, alone, torch.inf)
    best = torch.nn.functional.one_hot(alone.argmin(1), alone.shape[1]).double()
    value = alone.amin(1)
    if not bool(torch.isfinite(wide).all() & torch.isfinite(offset).all()) or wide.shape[1] == 1:
        return best
    logits = start.clone()
    for step in range(_STEPS):
        mixed = torch.einsum("bs,bsn->bn", weights, wide)
        corner = torch.where(mixed > 0, high, low)
        slope = offset + torch.einsum("bsn,bn->bs", wide, corner)  # each row at the worst corner
        now = (weights * slope).sum(1)
        better = now < value
        value, best = torch.where(better, now, value), torch.where(better.unsqueeze(1), weights, best)
        spread = (slope - now.unsqueeze(1)).masked_fill(~valid, 0.0).abs().amax(1, keepdim=True)
        spread = spread.clamp(min=1e-30)  # heuristic: any weights >= 0 are sound
        logits = logits - (2.0 / (1 + step) ** 0.5) * slope / spread
        weights = logits.masked_fill(~valid, -torch.inf).softmax(1)
    return best


def _sound(wide: Tensor, offset: Tensor, low: Tensor, high: Tensor, weights: Tensor) -> Tensor:
    """Maximise the mixture of these very lines over the box, rounding error bound included."""
    terms = wide.shape[1] + wide.shape[2] + 8
    size = torch.einsum("bs,bsn->bn", weights, wide.abs())
    magnitude = torch.maximum(low.abs(), high.abs())
    total = (weights * offset.abs()).sum(1) + (size * magnitude).sum(1)
    # The weights are any numbers >= 0: that they sum to 1 only nearly is no matter for the sign.
    return _largest(wide, offset, low, high, weights) + total * several_sums(terms, 8) + UNDERFLOW
