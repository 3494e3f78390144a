"""Translations of operators that cut, pick and pad."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.graph.onnx.build import Value, check_size
from surebound.graph.onnx.call import Call, Operand, Types, translates
from surebound.graph.onnx.places import chosen_by


def _axis_view(call: Call, x: Value, axis: int) -> tuple[Value, int]:
    """Hold a value so that one axis of the file can be worked on; return it and that axis."""
    if axis > 0 and x.shape[0] == 1:
        return call.held(x, x.shape[1:]), axis
    return call.builder.full(x), axis + 1


def _with_size(x: Value, axis: int, size: int) -> tuple[int, ...]:
    return (*x.shape[:axis], size, *x.shape[axis + 1 :])


@translates("Split", reads=("axis", "split", "num_outputs"), types=Types.MOVE)
def _split(call: Call) -> Operand | list[Operand]:
    x = call.x
    axis = call.axis(int(call.attribute("axis", 0)), len(x.shape))
    sizes, total = call.integers(1, "split"), x.shape[axis]
    if call.attribute("num_outputs", call.results) != call.results:
        raise call.refuse(f"num_outputs={call.attribute('num_outputs')}, but it has {call.results} results")
    if sizes is None:
        each = -(-total // call.results)
        sizes = [min(each, total - i * each) for i in range(call.results)]
    if len(sizes) != call.results or sum(sizes) != total or any(n < 1 for n in sizes):
        raise call.refuse(f"pieces of {sizes} of an axis of {total}")
    held, at = _axis_view(call, x, axis)
    pieces: list[Operand] = []
    first = 0
    for size in sizes:
        piece = call.emit("slice.Tensor", held, at, first, first + size)
        pieces.append(piece.reshaped(_with_size(x, axis, size)))
        first += size
    return pieces


@translates("Slice", reads=("starts", "ends", "axes"), types=Types.MOVE)
def _slice(call: Call) -> Operand:
    x, rank = call.x, len(call.x.shape)
    starts, ends = call.integers(1, "starts"), call.integers(2, "ends")
    axes, steps = call.integers(3, "axes"), call.integers(4)
    if starts is None or ends is None:
        raise call.refuse("it has no starts or ends")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise call.refuse(f"starts {starts}, ends {ends}, axes {axes}, steps {steps}")
    for start, end, step, given in zip(starts, ends, steps, axes, strict=True):
        axis = call.axis(given, rank)
        wanted = range(*slice(start, None if step < 0 and end < -x.shape[axis] else end, step).indices(x.shape[axis]))
        if len(wanted) == x.shape[axis] and step > 0:
            continue
        if not wanted:
            raise call.refuse(f"nothing of axis {axis} is left")
        held, at = _axis_view(call, x, axis)
        if step == 1:
            made = call.emit("slice.Tensor", held, at, wanted.start, wanted.stop)
        else:
            made = call.emit("index_select.default", held, at, torch.tensor(list(wanted)))
        x = made.reshaped(_with_size(x, axis, len(wanted)))
    return x


@translates("Gather", reads=("axis",), types=Types.OWN)
def _gather(call: Call) -> Operand:
    data, index = call.operand(0), call.operand(1)
    if data is None or index is None or (isinstance(index, Tensor) and index.is_floating_point()):
        raise call.refuse("its indices must be whole numbers")
    axis = call.axis(int(call.attribute("axis", 0)), len(data.shape))
    if isinstance(index, Value):
        if not isinstance(data, Tensor) or axis or data.dtype != torch.float32:
            raise call.refuse("indices that depend on the input are supported for rows of a float32 constant")
        return chosen_by(call, data, index)
    x = call.x
    size = x.shape[axis]
    if not index.numel() or int(index.min()) < -size or int(index.max()) >= size:
        raise call.refuse(f"indices outside an axis of {size}")
    held, at = _axis_view(call, x, axis)
    flat = (index.flatten().long()) % size
    made = call.emit("index_select.default", held, at, flat)
    return made.reshaped((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])).typed(x.dtype, x.span)


@translates("Pad", reads=("pads", "mode", "value"), types=Types.MOVE)
def _pad(call: Call) -> Operand:
    x, rank = call.x, len(call.x.shape)
    pads, mode = call.integers(1, "pads"), call.attribute("mode", "constant")
    axes = call.integers(3)
    axes = list(range(rank)) if axes is None else [call.axis(a, rank) for a in axes]
    if pads is None or len(pads) != 2 * len(axes):
        raise call.refuse(f"pads={pads} for {len(axes)} axes")
    amount = [[0, 0] for _ in range(rank)]
    for i, axis in enumerate(axes):
        amount[axis] = [pads[i], pads[i + len(axes)]]
    shape = [n + sum(p) for n, p in zip(x.shape, amount, strict=True)]
    if any(n < 1 for n in shape):
        raise call.refuse(f"pads={pads} leave nothing of {list(x.shape)}")
    check_size(shape, call.where)
    batched = x.shape[0] == 1 and amount[0] == [0, 0]
    held = call.held(x, x.shape[1:]) if batched else call.builder.full(x)
    used = amount[1:] if batched else amount
    if mode == "constant":
        value = call.number(2, "value", 0.0) or 0.0
        flat = [n for pair in reversed(used) for n in pair]
        return call.emit("constant_pad_nd.default", held, flat, value).reshaped(shape)
    space = used[1:]
    if not batched or used[0] != [0, 0] or len(space) not in (1, 2, 3) or mode not in ("reflect", "edge"):
        raise call.refuse(f"mode={mode!r} with pads={pads} of a tensor of shape {list(x.shape)}")
    flat = [n for pair in reversed(space) for n in pair]
    kind = "reflection" if mode == "reflect" else "replication"
    return call.emit(f"{kind}_pad{len(space)}d.default", held, flat).reshaped(shape)
