"""Optimisers by name, and the l1 regularisation of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, fused=True),
    "adamw": partial(torch.optim.AdamW, fused=True),
    "radam": torch.optim.RAdam,
}


def add_l1_gradient(weights: Sequence[Tensor], strength: float) -> None:
    """Add the gradient of strength · sum |w| to that of each weight which has one; 0 where a weight is 0."""
    if strength == 0.0:
        return
    with torch.no_grad():
        for weight in weights:
            if weight.grad is not None:
                weight.grad.add_(weight.sign(), alpha=strength)
