"""The largest of several entries: max-pooling, maximum and minimum (Tjeng et al. 2019, section 3.2)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.rules.mip.arithmetic import Operand, broadcast
from surebound.rules.mip.expression import (
    Encoder,
    Expression,
    Indices,
    constant_expression,
    replaced,
    scale_and_shift,
    stack,
)
from surebound.rules.windows import pool_windows

_DENSE = 2


def encode_maximum(encoder: Encoder, x: Expression, groups: Indices, shape: tuple[int, ...]) -> Expression:
    """Encode the maximum of each row of ``groups`` (G, N), entries of x; -1 stands for no entry.

    An entry whose upper bound is not above the largest lower bound cannot win and is left out; where one is
    left, it is the result. Else y >= x_i, y <= x_i + (u - l_i) (1 - b_i), sum b_i = 1.
    """
    lower = np.where(groups >= 0, x.lower[groups], -np.inf)  # (G, N)
    upper = np.where(groups >= 0, x.upper[groups], -np.inf)
    best = lower.argmax(1)
    alive = upper > lower.max(1, keepdims=True)
    alive[np.arange(len(groups)), best] = True
    y = x.take(groups[np.arange(len(groups)), best], shape)
    index = np.flatnonzero(alive.sum(1) > 1)
    if not len(index):
        return y
    return replaced(y, index, _encode(encoder, x, groups[index], alive[index]))


def _encode(encoder: Encoder, x: Expression, groups: Indices, alive: NDArray[np.bool_]) -> Expression:
    used = np.unique(groups[alive])
    x = replaced(x, used, encoder.materialised(x.take(used), _DENSE))
    lower = np.where(alive, x.lower[groups], -np.inf).max(1)
    upper = np.where(alive, x.upper[groups], -np.inf).max(1)
    y = encoder.variables(lower, upper)
    chosen_terms = []
    for position in range(groups.shape[1]):
        here = np.flatnonzero(alive[:, position])
        if not len(here):
            continue
        candidate = x.take(groups[here, position])
        chosen = encoder.binaries(len(here))
        gap = upper[here] - candidate.lower
        encoder.at_least([(1.0, y.take(here)), (-1.0, candidate)], 0.0)
        encoder.at_most([(1.0, y.take(here)), (-1.0, candidate), (gap, chosen)], gap)
        chosen_terms.append((1.0, _spread(chosen, here, len(groups))))
    encoder.equal(chosen_terms, 1.0)
    return y


def encode_max_pool(
    encoder: Encoder, shape: tuple[int, ...], x: Expression, kernel_size: Any, stride: Any = (),
    padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
) -> Expression:  # fmt: skip
    """Encode max-pooling of any rank; ``shape`` is (1, C, *out)."""
    windows, _sizes = pool_windows(x.shape, kernel_size, stride, padding, dilation, ceil_mode)
    return encode_maximum(encoder, x, windows.numpy(), shape)


def encode_larger(encoder: Encoder, shape: tuple[int, ...], x: Operand, y: Operand) -> Expression:
    """Encode maximum(x, y), either or both varying."""
    both = stack([broadcast(x, shape), broadcast(y, shape)])
    half = both.size // 2
    pairs = np.stack([np.arange(half), half + np.arange(half)], axis=1)
    return encode_maximum(encoder, both, pairs, shape)


def encode_smaller(encoder: Encoder, shape: tuple[int, ...], x: Operand, y: Operand) -> Expression:
    """Encode minimum(x, y) = -maximum(-x, -y)."""
    return _negated(encode_larger(encoder, shape, _negated(broadcast(x, shape)), _negated(broadcast(y, shape))))


def encode_largest(
    encoder: Encoder, shape: tuple[int, ...], x: Expression, dim: Any = (), keepdim: bool = False
) -> Expression:
    """Encode the largest entry along some axes (amax)."""
    axes = tuple(range(len(x.shape))) if dim == () or dim == [] else _axes(dim, len(x.shape))
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    numbers = np.arange(x.size).reshape(x.shape).transpose(*kept, *axes)
    groups = numbers.reshape(math.prod(x.shape[axis] for axis in kept), -1)
    return encode_maximum(encoder, x, groups, shape)


def encode_smallest(
    encoder: Encoder, shape: tuple[int, ...], x: Expression, dim: Any = (), keepdim: bool = False
) -> Expression:
    """Encode the smallest entry along some axes (amin)."""
    return _negated(encode_largest(encoder, shape, _negated(x), dim, keepdim))


def _axes(dim: Any, rank: int) -> tuple[int, ...]:
    return tuple(sorted(axis % rank for axis in ((dim,) if isinstance(dim, int) else dim)))


def _negated(x: Expression) -> Expression:
    return scale_and_shift(x, np.full(x.size, -1.0), np.zeros(x.size))


def _spread(x: Expression, index: Indices, size: int) -> Expression:
    """Put the entries of x at ``index`` of a longer expression that is 0 elsewhere."""
    return replaced(constant_expression(np.zeros(size)), index, x)
