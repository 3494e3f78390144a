"""The entries of an image that each output of a pooling sees, as flat positions; -1 where it sees the padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def pool_windows(
    shape: Sequence[int],
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, list[int]]:
    """Return the windows (C * outputs, entries) of max-pooling images (B, C, *size), and the sizes of the output."""
    rank, sizes = len(shape) - 2, [int(n) for n in shape[2:]]
    k, p, d = (_each(v, rank) for v in (kernel, padding, dilation))
    s = _each(stride, rank) if stride not in ((), [], None) else k
    return _windows(shape, [_axis(*spec, ceil_mode) for spec in zip(sizes, k, s, p, d, strict=True)])


def adaptive_windows(shape: Sequence[int], size: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Return ``pool_windows`` where along each axis output i of o reads floor(i n / o) to ceil((i + 1) n / o)."""
    return _windows(shape, [_adaptive_axis(int(n), int(o)) for n, o in zip(shape[2:], size, strict=True)])


def _windows(shape: Sequence[int], axes: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Combine positions (out, window) along each axis into windows."""
    windows, sizes = axes[0], [int(n) for n in shape[2:]]
    for axis, size in zip(axes[1:], sizes[1:], strict=True):
        both = windows[:, None, :, None] * size + axis[None, :, None, :]
        bad = (windows[:, None, :, None] < 0) | (axis[None, :, None, :] < 0)
        windows = both.masked_fill(bad, -1).flatten(2).flatten(0, 1)
    per_channel = windows + math.prod(sizes) * torch.arange(int(shape[1])).reshape(-1, 1, 1)  # (C, P, W)
    every = per_channel.masked_fill((windows < 0).expand(per_channel.shape), -1).flatten(0, 1)
    return every, [len(axis) for axis in axes]


def _each(value: Any, rank: int) -> list[int]:
    values = [int(value)] if isinstance(value, int) else [int(v) for v in value]
    return values * rank if len(values) == 1 else values


def _axis(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Tensor:
    """Return positions (out, kernel) along one axis, -1 in the padding."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + stride - 1 if ceil_mode else span) // stride + 1
    if ceil_mode and (count - 1) * stride >= size + padding:  # the last window must start inside
        count -= 1
    at = torch.arange(count)[:, None] * stride - padding + torch.arange(kernel)[None] * dilation
    return at.masked_fill((at < 0) | (at >= size), -1)


def _adaptive_axis(size: int, out: int) -> Tensor:
    """Return positions (out, widest window) along one axis, -1 beyond a window's end."""
    starts = [i * size // out for i in range(out)]
    ends = [-(-(i + 1) * size // out) for i in range(out)]
    widest = max((end - start for start, end in zip(starts, ends, strict=True)), default=1)
    at = torch.tensor(starts).reshape(-1, 1) + torch.arange(widest)
    return at.masked_fill(at >= torch.tensor(ends).reshape(-1, 1), -1)
