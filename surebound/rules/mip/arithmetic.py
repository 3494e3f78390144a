"""Sums of varying tensors, products with constants and concatenations: substituted, never a variable.

``shape`` is the result's, with the batch axis 1; an operand that does not vary is a tensor or a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from surebound.errors import BoundError
from surebound.rules.mip.expression import (
    Encoder,
    Expression,
    Vector,
    combine,
    constant_expression,
    scale_and_shift,
    stack,
)

Operand = Expression | Tensor | float | int


def encode_sum(encoder: Encoder, shape: tuple[int, ...], x: Operand, y: Operand, *, alpha: float = 1) -> Expression:
    """Encode x + alpha y."""
    a, b = broadcast(x, shape), broadcast(y, shape)
    matrix, constant = combine([(1.0, a), (float(alpha), b)], encoder.width)
    ends = np.sort(np.stack([alpha * b.lower, alpha * b.upper]), axis=0)
    return Expression(matrix, constant, a.lower + ends[0], a.upper + ends[1], shape)


def encode_difference(
    encoder: Encoder, shape: tuple[int, ...], x: Operand, y: Operand, *, alpha: float = 1
) -> Expression:
    """Encode x - alpha y."""
    return encode_sum(encoder, shape, x, y, alpha=-alpha)


def encode_product(encoder: Encoder, shape: tuple[int, ...], x: Operand, y: Operand) -> Expression:
    """Encode x y where one of them is constant."""
    if isinstance(x, Expression) and isinstance(y, Expression):
        raise BoundError("the product of two varying tensors is not piecewise linear: LP and MIP cannot follow it")
    varying, factor = (x, y) if isinstance(x, Expression) else (y, x)
    slope = _numbers(factor, shape)
    return scale_and_shift(broadcast(varying, shape), slope, np.zeros_like(slope))


def encode_quotient(encoder: Encoder, shape: tuple[int, ...], x: Operand, y: Operand) -> Expression:
    """Encode x / y where y is constant."""
    if isinstance(y, Expression):
        raise BoundError("division by a varying tensor is not piecewise linear: LP and MIP cannot follow it")
    slope = 1.0 / _numbers(y, shape)
    return scale_and_shift(broadcast(x, shape), slope, np.zeros_like(slope))


def encode_concatenation(
    encoder: Encoder, shape: tuple[int, ...], parts: Sequence[Operand], dim: int = 0
) -> Expression:
    """Encode tensors joined along an axis that exists."""
    return _joined(shape, parts, dim, np.concatenate)


def encode_stack(encoder: Encoder, shape: tuple[int, ...], parts: Sequence[Operand], dim: int = 0) -> Expression:
    """Encode tensors joined along a new axis."""
    return _joined(shape, parts, dim, np.stack)


def _joined(shape: tuple[int, ...], parts: Sequence[Operand], dim: int, join: Any) -> Expression:
    expressions = [_expression(part) for part in parts]
    offsets = np.cumsum([0, *(part.size for part in expressions)])
    numbers = [
        np.arange(part.size).reshape(part.shape) + start for part, start in zip(expressions, offsets, strict=False)
    ]
    return stack(expressions).take(join(numbers, axis=dim).ravel(), shape)


def _expression(value: Operand) -> Expression:
    if isinstance(value, Expression):
        return value
    return constant_expression(_array(value))


def broadcast(value: Operand, shape: tuple[int, ...]) -> Expression:
    """Broadcast an operand to the shape of the result."""
    expression = _expression(value)
    if expression.shape == shape:
        return expression
    index = np.broadcast_to(np.arange(expression.size).reshape(expression.shape), shape)
    return expression.take(index.ravel(), shape)


def _numbers(value: Operand, shape: tuple[int, ...]) -> Vector:
    if isinstance(value, Expression):
        raise BoundError("a constant was expected where a varying tensor stands")
    return np.broadcast_to(_array(value), shape).ravel()


def _array(value: Tensor | float | int) -> Vector:
    return value.detach().double().numpy() if isinstance(value, Tensor) else np.asarray(value, dtype=np.float64)
