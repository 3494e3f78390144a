"""Tensors taken apart: the operator is run on the entries' numbers, and the entries follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from surebound.rules.mip.expression import Encoder, Expression
from surebound.rules.shape import overload_of

APART = (
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.split.sizes",
    "aten.chunk.default",
    "aten.unbind.int",
)


def encode_apart(op: str) -> Callable[..., list[Expression]]:
    """The encoding of an operator that cuts a tensor into several."""
    run = overload_of(op)

    def encode(encoder: Encoder, shape: None, x: Expression, *args: Any, **kwargs: Any) -> list[Expression]:
        numbers = torch.arange(x.size).reshape(x.shape)
        return [
            x.take(part.reshape(-1).numpy().astype(np.intp), tuple(part.shape))
            for part in run(numbers, *args, **kwargs)
        ]

    return encode
