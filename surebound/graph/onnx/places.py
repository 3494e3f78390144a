"""Translations of operators that read and write entries at constant positions, or at whole numbers that vary."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from surebound.graph.onnx.build import Value, check_size
from surebound.graph.onnx.call import Call, Operand, Types, translates
from surebound.graph.onnx.logic import one_hot


def _indices(call: Call, index: int) -> Tensor:
    found = call.constant(index)
    if found is None or found.is_floating_point() or not found.numel():
        raise call.refuse(f"operand {index} must be positions: whole numbers")
    return found.long()


def _wrapped(call: Call, index: Tensor, size: int) -> Tensor:
    """Return positions counted from the front, or refuse them."""
    if bool(((index < -size) | (index >= size)).any()):
        raise call.refuse(f"positions outside an axis of {size}")
    return index % size


def _picked(call: Call, x: Value, flat: Tensor, shape: tuple[int, ...]) -> Value:
    """Pick entries by their flat positions."""
    held = call.held(x, (math.prod(x.shape),))
    return call.emit("index_select.default", held, 1, flat.reshape(-1)).reshaped(shape)


@translates("GatherElements", reads=("axis",), types=Types.MOVE)
def _gather_elements(call: Call) -> Operand:
    x, index = call.x, _indices(call, 1)
    return _picked(call, x, _element_places(call, x.shape, index), tuple(index.shape))


def _element_places(call: Call, shape: tuple[int, ...], index: Tensor) -> Tensor:
    """Return the flat positions of entries whose index along one axis is given, and along the others their own."""
    if index.dim() != len(shape):
        raise call.refuse(f"indices of shape {list(index.shape)} for a tensor of shape {list(shape)}")
    axis = call.axis(int(call.attribute("axis", 0)), len(shape))
    grids = list(torch.meshgrid(*(torch.arange(n) for n in index.shape), indexing="ij"))
    grids[axis] = _wrapped(call, index, shape[axis])
    return torch.from_numpy(np.ravel_multi_index([grid.numpy() for grid in grids], shape))


def _nd_places(call: Call, shape: tuple[int, ...], index: Tensor) -> Tensor:
    """Return the flat positions (*index, *rest) that the last axis of the indices names the beginning of."""
    depth = int(index.shape[-1])
    if depth > len(shape):
        raise call.refuse(f"indices of shape {list(index.shape)} for a tensor of shape {list(shape)}")
    numbers = torch.arange(math.prod(shape)).reshape(shape)
    return numbers[tuple(_wrapped(call, index[..., i], shape[i]) for i in range(depth))]


@translates("GatherND", reads=("batch_dims",), types=Types.MOVE)
def _gather_nd(call: Call) -> Operand:
    if call.attribute("batch_dims", 0):
        raise call.refuse("batch_dims other than 0 are not supported")
    places = _nd_places(call, call.x.shape, _indices(call, 1))
    return _picked(call, call.x, places, tuple(places.shape))


@translates("ScatterND", reads=("reduction",), types=Types.MOVE)
def _scatter_nd(call: Call) -> Operand:
    return _scattered(call, lambda shape: _nd_places(call, shape, _indices(call, 1)))


@translates("ScatterElements", "Scatter", reads=("axis", "reduction"), types=Types.MOVE)
def _scatter_elements(call: Call) -> Operand:
    return _scattered(call, lambda shape: _element_places(call, shape, _indices(call, 1)))


def _scattered(call: Call, places_in: Callable[[tuple[int, ...]], Tensor]) -> Operand:
    """Write entries over others: each result is an entry of either tensor."""
    data, updates = call.operand(0), call.operand(2)
    if data is None or updates is None:
        raise call.refuse("it needs data, indices and updates")
    if call.op != "Scatter" and call.attribute("reduction", "none") != "none":
        raise call.refuse(f"reduction={call.attribute('reduction')!r} is not supported")
    shape = tuple(data.shape)
    places = places_in(shape).reshape(-1)
    if len(set(places.tolist())) != len(places) or len(places) != math.prod(updates.shape):
        raise call.refuse("positions that are written twice, or not as many as updates")
    count = math.prod(shape)
    chosen = torch.arange(count)
    chosen[places] = count + torch.arange(len(places))
    parts = [
        call.held(each, (math.prod(each.shape),))
        if isinstance(each, Value)
        else call.builder.spread(call.number_like(each).reshape(-1))
        for each in (data, updates)
    ]
    return call.emit("index_select.default", call.emit("cat.default", parts, 1), 1, chosen).reshaped(shape)


@translates("Compress", reads=("axis",), types=Types.MOVE)
def _compress(call: Call) -> Operand:
    x, kept = call.x, call.constant(1)
    if kept is None or kept.dtype != torch.bool or not bool(kept.any()):
        raise call.refuse("its condition must be constant and keep something")
    numbers = torch.arange(math.prod(x.shape)).reshape(x.shape)
    at = kept.nonzero()[:, 0]
    given = call.attribute("axis")
    places = numbers.reshape(-1)[at] if given is None else numbers.index_select(call.axis(given, numbers.dim()), at)
    return _picked(call, x, places, tuple(places.shape))


@translates("Trilu", reads=("upper",), types=Types.MOVE)
def _trilu(call: Call) -> Operand:
    x, given = call.x, call.constant(1)
    if len(x.shape) < 2:
        raise call.refuse(f"it needs matrices, not shape {list(x.shape)}")
    side = torch.triu if call.attribute("upper", 1) else torch.tril
    mask = side(torch.ones(x.shape[-2:]), 0 if given is None else int(given)).bool()
    (held, kept, zero), shape = call.aligned(x, mask, torch.tensor(0.0))
    return call.emit("where.self", kept, held, zero).reshaped(shape)


def chosen_by(call: Call, table: Tensor, index: Value) -> Value:
    """Read rows of a constant table (N, *rest) at whole numbers that vary: the sum of rows, each times 0 or 1."""
    count, rest = int(table.shape[0]), tuple(table.shape[1:])
    shape = (*index.shape, *rest)
    check_size((math.prod(index.shape), count, math.prod(rest)), call.where)
    here = call.held(one_hot(call, index, count, len(index.shape)), (math.prod(index.shape), count))
    weight = call.number_of(table).reshape(count, -1).t().contiguous()
    return call.emit("linear.default", here, weight).reshaped(shape)
