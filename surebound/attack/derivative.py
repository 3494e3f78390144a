"""Derivatives of what a network computes, where they exist."""

from __future__ import annotations

import torch
from torch import Tensor


def derivative(total: Tensor, x: Tensor) -> Tensor:
    """Differentiate a number with respect to x; 0 where the network cuts the graph, or PyTorch has no derivative.

    Comparisons and roundings by ``detach`` cut it; ``clamp`` of a value that broadcasts to its ends has none.
    """
    if not total.requires_grad:
        return torch.zeros_like(x)
    try:
        (found,) = torch.autograd.grad(total, x, materialize_grads=True)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return torch.zeros_like(x)
    return found
