"""Splits as constraints on the network's input, for linear programs, and a program's duals as multipliers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds.linear.backward import Relaxed
from surebound.flags import exact_kernels

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SplitRows:
    """Splits sign * (matrix x + constant) >= 0 as affine functions of the input, M of them, N inputs."""

    matrix: Vector  # (M, N), times the sign
    constant: Vector  # (M,), times the sign
    place: dict[str, Tensor]  # by activation: flat positions of its rows, in order


def split_rows(node: Relaxed) -> SplitRows:
    """Every split's input as an affine function of the network's input."""
    matrix, constant, place = [], [], {}
    for name, split in node.splits.items():
        flat = split[0].flatten()
        place[name] = at = flat.nonzero()[:, 0]
        if not len(at):
            continue
        source = node.source(name)
        like = node.bounds[source].lower
        one_hot = like.new_zeros(len(at), flat.numel()).scatter_(1, at.unsqueeze(1), 1.0)
        with torch.no_grad(), exact_kernels():
            form = node.pull(
                source, one_hot.reshape(len(at), *like.shape), like.new_zeros(len(at), 1).double()
            )
        sign = _numbers(flat[at])
        matrix.append(sign[:, None] * _numbers(form.coefficients).reshape(len(at), -1))
        constant.append(sign * _numbers(form.offset))
    inputs = node.bounds[node.program.graph.input].lower.numel()
    return SplitRows(np.concatenate([np.zeros((0, inputs)), *matrix]), np.concatenate([[], *constant]), place)


def as_multipliers(node: Relaxed, rows: SplitRows, duals: Vector, dtype: torch.dtype) -> dict[str, Tensor]:
    """Multipliers (M,) of the splits by activation, (1, 1, *value) each."""
    betas, used = {}, 0
    for name, at in rows.place.items():
        split = node.splits[name]
        values = torch.from_numpy(np.abs(duals[used : used + len(at)])).to(dtype)
        used += len(at)
        flat = torch.zeros(split[0].numel(), dtype=dtype).scatter(0, at, values)
        betas[name] = flat.reshape(1, *split.shape)
    return betas


def _numbers(values: Tensor) -> Vector:
    flat = values.detach().double().cpu().numpy()
    return np.array(flat.reshape(-1), dtype=np.float64)
