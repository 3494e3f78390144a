"""The order of a tensor's entries in memory, where it decides what a network computes.

A Program is of contiguous inputs. Of others, as of images in channels-last order, ``flatten`` and ``reshape`` may copy
where they would be views, so that a network which writes into the result computes something else.
"""

from __future__ import annotations

import torch
from torch import Tensor


def order_of(x: Tensor) -> tuple[int, ...] | None:
    """Return the axes of x (B, ...), the outermost in memory first; None if it is contiguous.

    >>> order_of(torch.zeros(2, 3, 4, 5)), order_of(torch.zeros(2, 4, 5, 3).permute(0, 3, 1, 2))
    (None, (0, 2, 3, 1))
    """
    if x.layout != torch.strided or x.is_contiguous():
        return None
    strides = x.stride()
    order = tuple(sorted(range(x.dim()), key=lambda axis: -strides[axis]))  # stable: equal strides keep their order
    return None if order == tuple(range(x.dim())) else order


def laid_as(x: Tensor, order: tuple[int, ...] | None) -> Tensor:
    """Return the entries of x (B, ...) in such an order in memory.

    >>> laid_as(torch.zeros(2, 3, 4, 5), (0, 2, 3, 1)).stride()
    (60, 1, 15, 3)
    """
    if order is None:
        return x.contiguous()
    back = sorted(range(len(order)), key=order.__getitem__)
    return x.permute(order).contiguous().permute(back)
