"""Translations of operators on whole numbers, as quantised networks have them.

Whole numbers are held as float32 numbers, so products of them are the float operators: their bounds contain the exact
sums. What an execution multiplies these with, scale by scale in any order, is within few roundings of ours (``about``).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from surebound.graph.decompose import ABOUT
from surebound.graph.onnx.arithmetic import product
from surebound.graph.onnx.build import Shape, Value
from surebound.graph.onnx.call import WHOLE, Call, Operand, Types, translates
from surebound.graph.onnx.layers import CONVOLUTION, convolution

#: Scales are multiplied and divided with each other in any order, and with the sum.
_ROUNDINGS = 8.0


def _numbers(call: Call, value: Operand | None, zero: Operand | None, axis: int | None = None) -> Operand:
    """Return whole numbers less their zero point, which is one number or one for each entry of an axis."""
    if value is None:
        raise call.refuse("an operand is missing")
    if isinstance(zero, Value):
        if math.prod(zero.shape) != 1 or not isinstance(value, Value):
            raise call.refuse("zero points that depend on the input are one number, of an operand that does, too")
        (held, less), shape = call.aligned(value, zero.reshaped(()))
        return call.emit("sub.Tensor", held, less).reshaped(shape)
    shift = None if zero is None or not bool(zero.any()) else call.number_of(zero)
    if shift is not None and shift.numel() == 1:
        shift = shift.reshape(())
    elif shift is not None and not (axis == -1 and _is_of_columns(shift, value.shape)):
        if axis is None or shift.dim() != 1:
            raise call.refuse(f"zero points of shape {list(shift.shape)}; one number is supported there")
        shift = shift.reshape(-1, *([1] * (len(value.shape) - axis % len(value.shape) - 1)))
    if isinstance(value, Tensor):
        numbers = call.number_of(value)
        return numbers if shift is None else numbers - shift  # of whole numbers: exact
    if shift is None:
        return value.typed("float32")
    (held, less), shape = call.aligned(value, shift)
    return call.emit("sub.Tensor", held, less).reshaped(shape)


def _is_of_columns(constant: Tensor, shape: Shape) -> bool:
    """Is a constant of shape (..., 1, N) one number for each column of matrices (..., K, N)?"""
    given = tuple(constant.shape)
    fits = len(given) == len(shape) > 1 and given[-2:] == (1, shape[-1])
    return fits and all(n in (1, size) for n, size in zip(given[:-2], shape[:-2], strict=True))


def _whole(value: Value) -> Value:
    return value.typed("int32", WHOLE["int32"])


def _matmul_of(call: Call, a: Operand, b: Operand) -> Value:
    made = product(replace(call, op="MatMul", operands=[a, b]))
    if not isinstance(made, Value):
        raise call.refuse("it does not depend on the network's input")
    return made


def _conv_of(call: Call, x: Operand, weight: Operand, bias: Tensor | None) -> Value:
    made = convolution(replace(call, op="Conv", operands=[x, weight, bias]))
    if not isinstance(made, Value):
        raise call.refuse("it does not depend on the network's input")
    return made


@translates("MatMulInteger", types=Types.OWN)
def _matmul_integer(call: Call) -> Operand:
    a = _numbers(call, call.operand(0), call.operand(2))
    return _whole(_matmul_of(call, a, _numbers(call, call.operand(1), call.constant(3), -1)))


@translates("ConvInteger", reads=CONVOLUTION, types=Types.OWN)
def _conv_integer(call: Call) -> Operand:
    x = _numbers(call, call.operand(0), call.operand(2))
    return _whole(_conv_of(call, x, _numbers(call, call.operand(1), call.constant(3), 0), None))


def _scaled(call: Call, made: Value, scales: Tensor, zero: Tensor | None) -> Operand:
    """Multiply sums with their scale, round, shift and cut: what the next operator reads."""
    kind = "uint8" if zero is None else str(zero.dtype).removeprefix("torch.")
    if kind not in ("uint8", "int8"):
        raise call.refuse(f"to {kind}; uint8 and int8 are supported")
    if zero is not None and zero.numel() != 1:
        raise call.refuse(f"zero points of shape {list(zero.shape)} for its result; one number is supported")
    (held, size), shape = call.aligned(made, scales)
    times = call.emit("mul.Tensor", held, size)
    number = call.emit("round.default", call.emit(ABOUT, times, times, _ROUNDINGS))
    if zero is not None and bool(zero.any()):
        number = call.emit("add.Tensor", number, call.number_of(zero.reshape(())))
        number = call.emit("round.default", number)  # whole again: what follows may jump
    first, beyond = WHOLE[kind]
    return call.emit("clamp.default", number, first, beyond - 1).reshaped(shape).typed(kind, (first, beyond - 1))


def _scale(call: Call) -> Tensor:
    """Return the factor of the sums: one number, or as many as the second operand has scales, in their shape."""
    x, weight, out = (call.weight(index) for index in (1, 4, 6))
    for scale, whose in ((x, "first operand"), (out, "result")):
        if scale.numel() != 1:
            raise call.refuse(
                f"scales of shape {list(scale.shape)} for its {whose}; one number is supported there, as in "
                "onnxruntime: quantise it per tensor, or write DequantizeLinear, the float operator and QuantizeLinear"
            )
    scale = x.reshape(()) * weight / out.reshape(())
    return scale.reshape(()) if scale.numel() == 1 else scale


@translates("QLinearMatMul", types=Types.OWN)
def _q_linear_matmul(call: Call) -> Operand:
    a = _numbers(call, call.operand(0), call.constant(2))
    b = _numbers(call, call.operand(3), call.constant(5), -1)
    scale, shape = _scale(call), tuple(b.shape)
    by_column = len(shape) > 1 and tuple(scale.shape) == shape[-1:]
    if scale.dim() > 0 and not (by_column or _is_of_columns(scale, shape)):
        raise call.refuse(
            f"scales of shape {list(scale.shape)} for its second operand {list(shape)}; one number, or one for each of "
            "its columns, is supported"
        )
    return _scaled(call, _matmul_of(call, a, b), scale, call.constant(7))


@translates("QLinearConv", reads=CONVOLUTION, types=Types.OWN)
def _q_linear_conv(call: Call) -> Operand:
    x = _numbers(call, call.operand(0), call.constant(2))
    weight = _numbers(call, call.operand(3), call.constant(5), 0)
    bias = call.constant(8)
    made = _conv_of(call, x, weight, None if bias is None else call.number_of(bias))
    scale = _scale(call)
    scale = scale if scale.dim() == 0 else scale.reshape(-1, *([1] * (len(made.shape) - 2)))
    return _scaled(call, made, scale, call.constant(7))


@translates("DynamicQuantizeLinear", types=Types.OWN)
def _dynamic(call: Call) -> list[Operand]:
    """Quantise by the largest and smallest entries of the value itself, 0 among them; of zeros alone the scale is 1."""
    flat = call.held(call.x, (math.prod(call.x.shape),))
    most = call.emit("relu.default", call.emit("amax.default", flat, [1], True))
    low = call.emit("relu.default", call.emit("neg.default", call.emit("amin.default", flat, [1], True)))
    width = call.emit("add.Tensor", most, low)
    scale = call.emit("div.Tensor", width, torch.tensor(255.0))
    scale = call.emit("where.self", call.emit("gt.Scalar", width, 0.0), scale, torch.tensor(1.0))
    shift = call.emit("clamp.default", call.emit("div.Tensor", low, scale), 0.0, 255.0)
    shift = call.emit("round.default", shift)
    number = call.emit("round.default", call.emit("div.Tensor", flat, scale))
    number = call.emit("round.default", call.emit("add.Tensor", number, shift))
    made = call.emit("clamp.default", number, 0.0, 255.0).reshaped(call.x.shape)
    span = (0.0, 255.0)
    return [made.typed("uint8", span), scale.reshaped(()), shift.reshaped(()).typed("uint8", span)]
