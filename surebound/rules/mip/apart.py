"""Tensors taken apart: the operator is run on the entries' numbers, and the entries follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from surebound.rules.mip.expression import Encoder, Expression


def encode_apart(
    op: Callable[..., Any], encoder: Encoder, shape: None, x: Expression, *args: Any, **kwargs: Any
) -> list[Expression]:
    """Encode the parts into which ``op`` cuts a tensor."""
    numbers = torch.arange(x.size).reshape(x.shape)
    return [
        x.take(part.reshape(-1).numpy().astype(np.intp), tuple(part.shape)) for part in op(numbers, *args, **kwargs)
    ]
