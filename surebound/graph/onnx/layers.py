"""Translations of convolutions, normalisation, pooling and resizing."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.graph.onnx.build import Value, check_size
from surebound.graph.onnx.call import Call, Operand, translates

#: Attributes of convolutions and of pooling.
_POOL = ("kernel_shape", "strides", "dilations", "pads", "auto_pad")
CONVOLUTION = (*_POOL, "group")

_LOWEST = float(torch.finfo(torch.float32).min)


def _list(call: Call, name: str, default: int, rank: int) -> list[int]:
    found = call.attribute(name)
    values = [default] * rank if found is None else [int(v) for v in found]
    if len(values) != rank or any(v < 1 for v in values):
        raise call.refuse(f"{name}={values} for {rank} axes of space")
    return values


def _pads(call: Call, size: list[int], kernel: list[int], strides: list[int], dilations: list[int]) -> list[list[int]]:
    """Return the padding of every axis of space, [before, after]."""
    rank, mode = len(size), call.attribute("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pads = []
        for n, k, s, d in zip(size, kernel, strides, dilations, strict=True):
            total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            less, more = total // 2, total - total // 2
            pads.append([less, more] if mode == "SAME_UPPER" else [more, less])
        return pads
    if mode == "VALID":
        return [[0, 0] for _ in range(rank)]
    if mode != "NOTSET":
        raise call.refuse(f"auto_pad={mode!r} is not known")
    flat = call.attribute("pads") or [0] * (2 * rank)
    if len(flat) != 2 * rank or any(int(p) < 0 for p in flat):
        raise call.refuse(f"pads={list(flat)} for {rank} axes of space")
    return [[int(flat[i]), int(flat[i + rank])] for i in range(rank)]


def _padded(call: Call, x: Value, pads: list[list[int]], value: float) -> Value:
    check_size([n + sum(p) for n, p in zip(x.item[1:], pads, strict=True)], call.where)
    amounts = [amount for pair in reversed(pads) for amount in pair]
    return call.emit("constant_pad_nd.default", x, amounts, value)


def _kernel(call: Call, x: Value, weight: Tensor) -> list[int]:
    """Return the window of a convolution, which the file says twice."""
    kernel = list(weight.shape[2:])
    if len(kernel) not in (1, 2, 3) or len(x.item) != len(kernel) + 1:
        raise call.refuse(f"an input of shape {list(call.x.shape)} and a kernel of {list(weight.shape)}")
    if call.attribute("kernel_shape") not in (None, kernel):
        raise call.refuse(f"kernel_shape={call.attribute('kernel_shape')} and a kernel of {list(weight.shape)}")
    return kernel


@translates("Conv", reads=CONVOLUTION)
def convolution(call: Call) -> Operand:
    """Emit a convolution of the first operand, which varies."""
    x, weight, bias = call.image(call.x), call.weight(1), call.constant(2)
    kernel = _kernel(call, x, weight)
    rank = len(kernel)
    strides, dilations = _list(call, "strides", 1, rank), _list(call, "dilations", 1, rank)
    pads = _pads(call, list(x.item[1:]), kernel, strides, dilations)
    if any(before != after for before, after in pads):
        x = _padded(call, x, pads, 0.0)
        pads = [[0, 0] for _ in pads]
    group = int(call.attribute("group", 1))
    padding = [before for before, _ in pads]
    out = call.emit(f"conv{rank}d.default", x, weight, bias, strides, padding, dilations, group)
    return call.from_image(out)


@translates("ConvTranspose", reads=(*CONVOLUTION, "output_shape", "output_padding"))
def _conv_transpose(call: Call) -> Operand:
    x, weight, bias = call.image(call.x), call.weight(1), call.constant(2)
    kernel = _kernel(call, x, weight)
    rank = len(kernel)
    if call.attribute("output_shape") is not None or call.attribute("auto_pad", "NOTSET") not in (
        "NOTSET",
        "VALID",
    ):
        raise call.refuse("output_shape and auto_pad are not supported; give pads and output_padding")
    strides, dilations = _list(call, "strides", 1, rank), _list(call, "dilations", 1, rank)
    pads = _pads(call, list(x.item[1:]), kernel, strides, dilations)
    extra = [int(v) for v in call.attribute("output_padding") or [0] * rank]
    even = all(before == after for before, after in pads) and all(
        e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)
    )
    if not even and any(extra):
        raise call.refuse("output_padding together with unequal pads is not supported")
    padding = [before for before, _ in pads] if even else [0] * rank
    op = "conv_transpose1d.default" if rank == 1 else f"conv_transpose{rank}d.input"
    group = int(call.attribute("group", 1))
    out = call.emit(op, x, weight, bias, strides, padding, extra, group, dilations)
    if not even:
        for axis, (before, after) in enumerate(pads):
            end = out.item[axis + 1] - after
            out = call.emit("slice.Tensor", out, axis + 2, before, end)
    return call.from_image(out)


@translates("BatchNormalization", reads=("training_mode", "spatial", "epsilon", "momentum"))
def _batch_norm(call: Call) -> Operand:
    if call.attribute("training_mode", 0) or call.results > 1:
        raise call.refuse("it is in training mode; export the network in evaluation mode")
    if call.attribute("spatial", 1) != 1:
        raise call.refuse("spatial=0 is not supported")
    scale, shift, mean, var = (call.weight(i) for i in range(1, 5))
    x = call.image(call.x)
    eps = float(call.attribute("epsilon", 1e-5))
    op = "_native_batch_norm_legit_no_training.default"
    return call.from_image(call.emit(op, x, scale, shift, mean, var, 0.1, eps))


def _window(call: Call, x: Value) -> tuple[list[int], list[int], list[int], list[list[int]]]:
    rank = len(x.item) - 1
    if rank not in (1, 2, 3):
        raise call.refuse(f"pooling of a tensor of shape {list(call.x.shape)}")
    kernel = _list(call, "kernel_shape", 1, rank)
    strides, dilations = _list(call, "strides", 1, rank), _list(call, "dilations", 1, rank)
    return kernel, strides, dilations, _pads(call, list(x.item[1:]), kernel, strides, dilations)


@translates("MaxPool", reads=(*_POOL, "ceil_mode", "storage_order"))
def _max_pool(call: Call) -> Operand:
    if call.results > 1:
        raise call.refuse("its indices are used; only the values are supported")
    x = call.image(call.x)
    rank, (kernel, strides, dilations, pads) = len(x.item) - 1, _window(call, x)
    if any(before != after or 2 * before > k for (before, after), k in zip(pads, kernel, strict=True)):
        # Smaller than any number that could win: the maximum is that of the real entries.
        x, pads = _padded(call, x, pads, _LOWEST), [[0, 0] for _ in pads]
    ceil = bool(call.attribute("ceil_mode", 0))
    padding = [before for before, _ in pads]
    return call.from_image(call.emit(f"max_pool{rank}d.default", x, kernel, strides, padding, dilations, ceil))


@translates("AveragePool", reads=(*_POOL, "ceil_mode", "count_include_pad"))
def _average_pool(call: Call) -> Operand:
    x = call.image(call.x)
    rank, (kernel, strides, dilations, pads) = len(x.item) - 1, _window(call, x)
    if any(d != 1 for d in dilations):
        raise call.refuse(f"dilations={dilations} are not supported")
    include, ceil = bool(call.attribute("count_include_pad", 0)), bool(call.attribute("ceil_mode", 0))
    if any(before != after or 2 * before > k for (before, after), k in zip(pads, kernel, strict=True)):
        if not include or ceil:
            raise call.refuse(f"pads={pads} that differ, with count_include_pad=0 or ceil_mode=1")
        x, pads = _padded(call, x, pads, 0.0), [[0, 0] for _ in pads]
    padding = [before for before, _ in pads]
    return call.from_image(call.emit(f"avg_pool{rank}d.default", x, kernel, strides, padding, ceil, include))


@translates("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(call: Call) -> Operand:
    x = call.image(call.x)
    axes = list(range(2, len(x.item) + 1))
    op = "mean.dim" if call.op == "GlobalAveragePool" else "amax.default"
    return call.from_image(call.emit(op, x, axes, True))


@translates("Resize", "Upsample", reads=("mode", "nearest_mode", "coordinate_transformation_mode", "scales"))
def _resize(call: Call) -> Operand:
    """Translate nearest neighbour by whole factors; anything else interpolates in ways that differ between versions."""
    x = call.image(call.x)
    rank = len(x.item) - 1
    scales = call.constant(1 if call.op == "Upsample" or call.opset < 11 else 2)
    given = call.attribute("scales") if call.opset < 9 else None  # an attribute once
    sizes = call.integers(3) if call.op == "Resize" and call.opset >= 11 else None
    if sizes is not None:
        wanted = sizes
    elif given is not None or (scales is not None and scales.numel()):
        # A damaged file's may be whole numbers.
        factors = [float(v) for v in (scales.flatten().tolist() if scales is not None else given or [])]
        if not all(factor.is_integer() for factor in factors):
            raise call.refuse(f"scales={factors}; only nearest neighbours by whole factors are supported")
        wanted = [n * int(factor) for n, factor in zip(call.x.shape, factors, strict=False)]
    else:
        raise call.refuse("it has neither scales nor sizes")
    whole = len(wanted) == rank + 2 and wanted[:2] == list(call.x.shape[:2])
    whole = whole and all(w % n == 0 for w, n in zip(wanted, call.x.shape, strict=True))
    plain = call.attribute("mode", "nearest") == "nearest" and rank in (1, 2, 3)
    rounding = call.attribute("nearest_mode", "round_prefer_floor")
    where = call.attribute("coordinate_transformation_mode", "half_pixel")
    usual = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))  # both pick i // factor
    exact = call.op == "Upsample" or (where, rounding) in usual
    if not (whole and plain and exact):
        raise call.refuse("only nearest neighbours by whole factors (asymmetric, floor) are supported")
    check_size(wanted, call.where)
    return call.from_image(call.emit(f"upsample_nearest{rank}d.default", x, wanted[2:]))
