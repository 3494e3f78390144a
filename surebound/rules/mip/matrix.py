"""An affine operator as a sparse matrix, read off the operator itself: y = A x + b for one example.

Entries that only move are followed by their numbers; a convolution's windows by theirs; anything else is run
on the unit vectors. All in float64, so that A holds the stored weights exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are used: `sparse` takes as long as a small query
import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.errors import BoundError
from surebound.rules.mip.expression import Vector

#: Most entries that one operator's matrix may have (400 MB): beyond it a MIP is hopeless anyway.
MOST_ENTRIES = 1 << 25
_CHUNK = 1 << 22  # numbers of a batch of unit vectors

Apply = Callable[[Tensor], Tensor]  # (N, *in) float64 -> (N, *out)


def affine_matrix(apply: Apply, in_shape: tuple[int, ...], moves: bool) -> tuple[scipy.sparse.csr_array, Vector]:
    """Return A (out, in) and b (out,) of an affine map of examples of shape ``in_shape`` (no batch axis)."""
    zero = apply(torch.zeros(1, *in_shape, dtype=torch.float64))
    constant = zero.reshape(-1).numpy()
    if moves:
        return _moved(apply, in_shape), constant
    return _probed(apply, in_shape, zero), constant


def _moved(apply: Apply, in_shape: tuple[int, ...]) -> scipy.sparse.csr_array:
    """Return the matrix of an operator that moves entries, up to the sign, by running it on their numbers from 1."""
    size = math.prod(in_shape)
    numbers = torch.arange(1, size + 1, dtype=torch.float64).reshape(1, *in_shape)
    found = apply(numbers).reshape(-1).numpy()
    rows = np.flatnonzero(found)
    columns = np.abs(found[rows]).astype(np.intp) - 1
    return scipy.sparse.csr_array((np.sign(found[rows]), (rows, columns)), shape=(len(found), size))


def _probed(apply: Apply, in_shape: tuple[int, ...], zero: Tensor) -> scipy.sparse.csr_array:
    size, out = math.prod(in_shape), zero.numel()
    chunk = max(1, _CHUNK // max(1, out + size))
    blocks, entries = [], 0
    for start in range(0, size, chunk):
        count = min(chunk, size - start)
        units = torch.zeros(count, size, dtype=torch.float64)
        units[torch.arange(count), start + torch.arange(count)] = 1.0
        columns = apply(units.reshape(count, *in_shape)) - zero
        blocks.append(scipy.sparse.csr_array(columns.reshape(count, -1).numpy()))
        entries += blocks[-1].nnz
        if entries > MOST_ENTRIES:
            raise BoundError(f"an operator's matrix has more than {MOST_ENTRIES} entries: too large for LP and MIP")
    return scipy.sparse.csr_array(scipy.sparse.vstack(blocks, format="csr").T)


def conv2d_matrix(
    in_shape: tuple[int, ...], out_shape: tuple[int, ...], weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> scipy.sparse.csr_array:  # fmt: skip
    """Return the matrix of a 2-d convolution (C, H, W) -> (O, H', W') from the inputs that its L positions see."""
    channels_out, per_group = weight.shape[0], math.prod(weight.shape[1:])
    positions = math.prod(out_shape[1:])
    if channels_out * positions * per_group > MOST_ENTRIES:
        raise BoundError(f"a convolution's matrix has more than {MOST_ENTRIES} entries: too large for LP and MIP")
    size = math.prod(in_shape)
    numbers = torch.arange(1, size + 1, dtype=torch.float64).reshape(1, *in_shape)
    windows = F.unfold(numbers, weight.shape[2:], dilation, padding, stride)
    seen = windows[0].numpy().astype(np.intp) - 1  # (C * k, L), -1 for padding
    kernels = weight.reshape(groups, channels_out // groups, per_group).double().numpy()
    inputs = seen.reshape(groups, per_group, positions)
    # (groups, out per group, positions, per group)
    data = np.broadcast_to(kernels[:, :, None, :], (groups, channels_out // groups, positions, per_group))
    columns = np.broadcast_to(inputs.transpose(0, 2, 1)[:, None], data.shape)
    rows = np.broadcast_to(np.arange(channels_out * positions).reshape(*data.shape[:3], 1), data.shape)
    used = (columns >= 0) & (data != 0)
    return scipy.sparse.csr_array((data[used], (rows[used], columns[used])), shape=(channels_out * positions, size))


def in_double(value: Any) -> Any:
    """Convert every floating point tensor among an operator's arguments to float64."""
    if isinstance(value, Tensor):
        return value.detach().double() if value.is_floating_point() else value.detach()
    if isinstance(value, (list, tuple)):
        return type(value)(in_double(item) for item in value)
    return value
