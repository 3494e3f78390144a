"""Translations of operators that move, join, cut and reduce entries."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from surebound.graph.onnx.build import Value, broadcast, check_size
from surebound.graph.onnx.call import Call, Operand, Types, translates


@translates("Identity", "Dropout", reads=("ratio", "seed"), types=Types.MOVE)
def _identity(call: Call) -> Operand | list[Operand]:
    if call.results > 1:
        raise call.refuse("its mask is used; it has none in evaluation mode")
    if call.op == "Dropout" and call.operand(2) is not None and bool(call.constant(2)):
        raise call.refuse("it is in training mode; export the network in evaluation mode")
    return call.x


@translates("Shape", reads=("start", "end"), types=Types.OWN)
def _shape(call: Call) -> Operand:
    whole = torch.tensor(call.x.shape, dtype=torch.int64)
    return whole[call.attribute("start", 0) : call.attribute("end", len(whole))].clone()


@translates("Size", types=Types.OWN)
def _size(call: Call) -> Operand:
    return torch.tensor(math.prod(call.x.shape), dtype=torch.int64)


@translates("Reshape", reads=("allowzero", "shape"), types=Types.MOVE)
def _reshape(call: Call) -> Operand:
    x, wanted = call.x, call.integers(1, "shape")
    if wanted is None:
        raise call.refuse("it has no shape")
    if not call.attribute("allowzero", 0):
        if any(n == 0 and i >= len(x.shape) for i, n in enumerate(wanted)):
            raise call.refuse(f"shape {wanted} keeps an axis that {list(x.shape)} does not have")
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    if wanted.count(-1) > 1 or any(n < -1 for n in wanted):
        raise call.refuse(f"shape {wanted} is not one")
    if -1 in wanted:
        rest = math.prod(n for n in wanted if n != -1)
        if rest == 0 or math.prod(x.shape) % rest:
            raise call.refuse(f"shape {wanted} does not fit {list(x.shape)}")
        wanted = [math.prod(x.shape) // rest if n == -1 else n for n in wanted]
    return x.reshaped(wanted)


@translates("Flatten", reads=("axis",), types=Types.MOVE)
def _flatten(call: Call) -> Operand:
    x, axis, rank = call.x, int(call.attribute("axis", 1)), len(call.x.shape)
    axis = rank if axis == rank else call.axis(axis, rank) if rank else 0
    return x.reshaped((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@translates("Squeeze", reads=("axes",), types=Types.MOVE)
def _squeeze(call: Call) -> Operand:
    x, axes = call.x, call.integers(1, "axes")
    if axes is None:
        return x.reshaped([n for n in x.shape if n != 1])
    drop = {call.axis(axis, len(x.shape)) for axis in axes}
    if any(x.shape[i] != 1 for i in drop):
        raise call.refuse(f"axes {axes} of a tensor of shape {list(x.shape)} are not all of size 1")
    return x.reshaped([n for i, n in enumerate(x.shape) if i not in drop])


@translates("Unsqueeze", reads=("axes",), types=Types.MOVE)
def _unsqueeze(call: Call) -> Operand:
    x, axes = call.x, call.integers(1, "axes") or []
    rank = len(x.shape) + len(axes)
    new = {call.axis(axis, rank) for axis in axes}
    if len(new) != len(axes):
        raise call.refuse(f"axes {axes} name one twice")
    rest = iter(x.shape)
    return x.reshaped([1 if i in new else next(rest) for i in range(rank)])


@translates("Transpose", reads=("perm",), types=Types.MOVE)
def _transpose(call: Call) -> Operand:
    x, rank = call.x, len(call.x.shape)
    order = [call.axis(int(i), rank) for i in call.attribute("perm") or reversed(range(rank))]
    if sorted(order) != list(range(rank)):
        raise call.refuse(f"perm={order} is no order of {rank} axes")
    shape = tuple(x.shape[i] for i in order)
    if [i for i in order if x.shape[i] != 1] == sorted(i for i in order if x.shape[i] != 1):
        return x.reshaped(shape)  # only axes of size 1 move
    if order[0] == 0 and x.shape[0] == 1:
        return call.emit("permute.default", call.held(x, x.shape[1:]), [0, *order[1:]]).reshaped(shape)
    return call.emit("permute.default", call.builder.full(x), [0, *(i + 1 for i in order)]).reshaped(shape)


@translates("Expand", "Tile", types=Types.MOVE)
def _expand(call: Call) -> Operand:
    x, wanted = call.x, call.integers(1)
    if wanted is None or any(n < 1 for n in wanted):
        raise call.refuse(f"its shape or repeats are {wanted}; give positive numbers")
    if call.op == "Tile":
        if len(wanted) != len(x.shape):
            raise call.refuse(f"repeats {wanted} for a tensor of shape {list(x.shape)}")
        check_size([n * r for n, r in zip(x.shape, wanted, strict=True)], call.where)
        return call.emit("repeat.default", call.builder.full(x), [1, *wanted])
    rank = max(len(wanted), len(x.shape))
    shape = broadcast([x.shape, wanted], call.where)
    check_size(shape, call.where)
    if math.prod(shape) == math.prod(x.shape):
        return x.reshaped(shape)
    padded = call.held(x, (*([1] * (rank - len(x.shape))), *x.shape))
    return call.emit("expand.default", padded, [-1, *shape])


@translates("Concat", reads=("axis",), types=Types.MOVE)
def _concat(call: Call) -> Operand:
    parts = [each for each in call.operands if each is not None]
    rank = len(parts[0].shape)
    axis = call.axis(int(call.attribute("axis", 1)), rank)
    batched = axis > 0 and all(len(p.shape) == rank and p.shape[0] == 1 for p in parts)
    shapes = [tuple(p.shape[1:]) if batched else tuple(p.shape) for p in parts]
    held = [
        call.held(p, s) if isinstance(p, Value) else call.number_like(p).reshape(s)
        for p, s in zip(parts, shapes, strict=True)
    ]
    if any(isinstance(each, Tensor) for each in held):
        held = [each if isinstance(each, Value) else call.builder.spread(each) for each in held]
    try:
        made = call.emit("cat.default", held, axis if batched else axis + 1)
    except RuntimeError as error:
        raise call.refuse(f"shapes {', '.join(str(list(p.shape)) for p in parts)} along axis {axis}") from error
    return made.reshaped((1, *made.item)) if batched else made


_REDUCTIONS = {
    "ReduceMean": "mean.dim",
    "ReduceSum": "sum.dim_IntList",
    "ReduceMax": "amax.default",
    "ReduceMin": "amin.default",
}


@translates(*_REDUCTIONS, reads=("axes", "keepdims", "noop_with_empty_axes"), types=Types.SAME)
def _reduce(call: Call) -> Operand:
    x, rank = call.x, len(call.x.shape)
    axes = call.integers(1, "axes")
    if not axes:
        if call.attribute("noop_with_empty_axes", 0):
            return x
        axes = list(range(rank))
    drop = {call.axis(a, rank) for a in axes}
    shape = [1 if i in drop else n for i, n in enumerate(x.shape)]
    if not call.attribute("keepdims", 1):
        shape = [n for i, n in enumerate(x.shape) if i not in drop]
    real = sorted(i for i in drop if x.shape[i] != 1)
    if not real:
        return x.reshaped(shape)
    batched = x.shape[0] == 1
    held = call.held(x, x.shape[1:]) if batched else call.builder.full(x)
    at = [i if batched else i + 1 for i in real]
    if call.op == "ReduceMean" and x.whole:
        raise call.refuse(f"a mean of {x.dtype} numbers is not supported")
    made = call.emit(_REDUCTIONS[call.op], held, at, True).reshaped(shape)
    terms = math.prod(x.shape[i] for i in real) if call.op == "ReduceSum" else 1
    return replace(made, span=(terms * x.span[0], terms * x.span[1]))


@translates("DepthToSpace", "SpaceToDepth", reads=("blocksize", "mode"), types=Types.MOVE)
def _blocks(call: Call) -> Operand:
    x, size = call.image(call.x), int(call.attribute("blocksize", 1))
    if len(x.item) != 3 or size < 1:
        raise call.refuse(f"blocksize={size} of a tensor of shape {list(call.x.shape)}")
    channels, height, width = x.item
    if call.op == "SpaceToDepth":
        if height % size or width % size:
            raise call.refuse(f"{height} x {width} is no multiple of {size}")
        parts = call.held(x, (channels, height // size, size, width // size, size))
        moved = call.emit("permute.default", parts, [0, 3, 5, 1, 2, 4])
        return moved.reshaped((1, channels * size * size, height // size, width // size))
    if channels % (size * size):
        raise call.refuse(f"{channels} channels are no multiple of {size * size}")
    deep = channels // (size * size)
    if call.attribute("mode", "DCR") == "DCR":
        parts, order = call.held(x, (size, size, deep, height, width)), [0, 3, 4, 1, 5, 2]
    else:
        parts, order = call.held(x, (deep, size, size, height, width)), [0, 1, 4, 2, 5, 3]
    moved = call.emit("permute.default", parts, order)
    return moved.reshaped((1, deep, height * size, width * size))
