"""Translations of arithmetic, matrix products and activations."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from surebound.graph.onnx.build import Value, broadcast
from surebound.graph.onnx.call import Call, Operand, Types, span_of, translates


def _pointwise(op: str, call: Call) -> Operand:
    x = call.x
    return call.emit(op, x).reshaped(x.shape)


for _name, _op in {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Abs": "abs",
    "Neg": "neg", "Erf": "erf", "Sin": "sin", "Cos": "cos", "Sinh": "sinh", "Cosh": "cosh", "Atan": "atan",
    "Asinh": "asinh", "Reciprocal": "reciprocal", "Sign": "sign", "HardSwish": "hardswish", "Mish": "mish",
    "Softplus": "softplus",
}.items():  # fmt: skip
    _types = Types.SAME if _name in ("Relu", "Abs", "Neg", "Sign") else Types.FLOAT
    translates(_name, types=_types)(partial(_pointwise, f"{_op}.default"))

for _name, _op in {"Floor": "floor", "Ceil": "ceil", "Round": "round"}.items():
    translates(_name)(partial(_pointwise, f"{_op}.default"))


def _binary(op: str, call: Call) -> Operand:
    (a, b), shape = call.aligned(*_two(call))
    if any(isinstance(each, Value) and each.whole for each in (a, b)):
        return _whole_binary(op, call, a, b).reshaped(shape)
    if isinstance(a, Tensor):  # rules want the varying operand first where the order does not matter
        if op in ("add.Tensor", "mul.Tensor"):
            a, b = b, a
        elif op == "sub.Tensor":  # a - x = -x + a: negation is exact
            return call.emit("add.Tensor", call.emit("neg.default", b), a).reshaped(shape)
        elif op == "div.Tensor" and bool((a == 1).all()) and isinstance(b, Value) and b.shape == shape:
            return call.emit("reciprocal.default", b).reshaped(shape)
    return call.emit(op, a, b).reshaped(shape)


def _whole_binary(op: str, call: Call, a: Operand, b: Operand) -> Value:
    """Translate arithmetic of whole numbers; a quotient is cut towards 0."""
    made = call.emit(op, *(a, b) if isinstance(a, Value) or op != "mul.Tensor" else (b, a))
    (low, high), (least, most) = span_of(a), span_of(b)
    if op == "add.Tensor":
        return replace(made, span=(low + least, high + most))
    if op == "sub.Tensor":
        return replace(made, span=(low - most, high - least))
    return call.emit("trunc.default", made) if op == "div.Tensor" else made


def _two(call: Call) -> tuple[Operand, Operand]:
    a, b = call.operand(0), call.operand(1)
    if a is None or b is None:
        raise call.refuse("it needs two operands")
    a, b = (call.number_like(each) if isinstance(each, Tensor) else each for each in (a, b))
    return a, b


for _name, _op in {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}.items():
    translates(_name, types=Types.SAME)(partial(_binary, f"{_op}.Tensor"))


@translates("Sum", "Mean")
def _sum(call: Call) -> Operand:
    (total, *others), shape = _varying_first(call)
    for each in others:
        total = call.emit("add.Tensor", total, each)
    if call.op == "Mean":
        total = call.emit("div.Tensor", total, torch.tensor(float(len(others) + 1)))
    return total.reshaped(shape)


@translates("Max", "Min", types=Types.MOVE)
def _extremum(call: Call) -> Operand:
    (best, *others), shape = _varying_first(call)
    for each in others:
        if isinstance(each, Tensor) and each.numel() == 1:
            op = "clamp_min.default" if call.op == "Max" else "clamp_max.default"
            best = call.emit(op, best, float(each))
        else:
            best = call.emit("maximum.default" if call.op == "Max" else "minimum.default", best, each)
    return best.reshaped(shape)


def _varying_first(call: Call) -> tuple[tuple[Value, *tuple[Operand, ...]], tuple[int, ...]]:
    """Return all operands as they broadcast, the constants last, and the result's shape."""
    given = [each for each in call.operands if each is not None]
    operands, shape = call.aligned(*[call.number_like(each) if isinstance(each, Tensor) else each for each in given])
    first, *others = sorted(operands, key=lambda each: isinstance(each, Tensor))
    if not isinstance(first, Value):
        raise call.refuse("none of its operands varies")
    return (first, *others), shape


@translates("Clip", reads=("min", "max"), types=Types.MOVE)
def _clip(call: Call) -> Operand:
    x = call.x
    low, high = call.number(1, "min", None), call.number(2, "max", None)
    if low is None and high is None:
        return x
    if low is not None and high is not None:
        return call.emit("clamp.default", x, low, high).reshaped(x.shape)
    if low == 0:
        return call.emit("relu.default", x).reshaped(x.shape)
    clamped = call.emit("clamp_max.default", x, high) if low is None else call.emit("clamp_min.default", x, low)
    return clamped.reshaped(x.shape)


@translates("Pow")
def _pow(call: Call) -> Operand:
    exponent = call.constant(1)
    if exponent is None or exponent.numel() != 1:
        raise call.refuse("its exponent must be one constant number")
    power, x = float(exponent), call.x
    shape = broadcast([x.shape, exponent.shape], call.where)  # an exponent of more axes adds axes
    if power == 1:
        return x.reshaped(shape)
    return call.emit("pow.Tensor_Scalar", x, int(power) if power.is_integer() else power).reshaped(shape)


@translates("LeakyRelu", reads=("alpha",))
def _leaky(call: Call) -> Operand:
    return call.emit("leaky_relu.default", call.x, call.attribute("alpha", 0.01)).reshaped(call.x.shape)


@translates("PRelu")
def _prelu(call: Call) -> Operand:
    """Translate to max(x, 0) + slope min(x, 0): ONNX's slope has any shape that broadcasts."""
    (x, slope), shape = call.aligned(call.x, call.weight(1))
    positive = call.emit("relu.default", x)
    negative = call.emit("relu.default", call.emit("neg.default", x))
    if not isinstance(slope, Tensor):
        raise call.refuse("its slope must be constant")
    return call.emit("sub.Tensor", positive, call.emit("mul.Tensor", negative, slope)).reshaped(shape)


@translates("Elu", "Celu", reads=("alpha",))
def _elu(call: Call) -> Operand:
    op = "elu.default" if call.op == "Elu" else "celu.default"
    return call.emit(op, call.x, call.attribute("alpha", 1.0)).reshaped(call.x.shape)


@translates("Selu", reads=("alpha", "gamma"))
def _selu(call: Call) -> Operand:
    alpha, gamma = call.attribute("alpha", 1.6732631921768188), call.attribute("gamma", 1.0507010221481323)
    inner = call.emit("elu.default", call.x, alpha)
    return call.emit("mul.Tensor", inner, torch.tensor(gamma)).reshaped(call.x.shape)


@translates("HardSigmoid", reads=("alpha", "beta"))
def _hard_sigmoid(call: Call) -> Operand:
    scaled = call.emit("mul.Tensor", call.x, torch.tensor(float(call.attribute("alpha", 0.2))))
    moved = call.emit("add.Tensor", scaled, torch.tensor(float(call.attribute("beta", 0.5))))
    return call.emit("clamp.default", moved, 0.0, 1.0).reshaped(call.x.shape)


@translates("ThresholdedRelu", reads=("alpha",))
def _threshold(call: Call) -> Operand:
    return call.emit("threshold.default", call.x, call.attribute("alpha", 1.0), 0.0).reshaped(call.x.shape)


@translates("Softsign")
def _softsign(call: Call) -> Operand:
    below = call.emit("add.Tensor", call.emit("abs.default", call.x), torch.tensor(1.0))
    return call.emit("div.Tensor", call.x, below).reshaped(call.x.shape)


@translates("Gelu", reads=("approximate",))
def _gelu(call: Call) -> Operand:
    if call.attribute("approximate", "none") != "none":
        raise call.refuse("approximate='tanh' has no bound rule; export the exact Gelu")
    return _pointwise("gelu.default", call)


@translates("Swish", reads=("alpha",))
def _swish(call: Call) -> Operand:
    if call.attribute("alpha", 1.0) != 1.0:
        raise call.refuse(f"alpha={call.attribute('alpha')}; only 1 is supported")
    return _pointwise("silu.default", call)


@translates("Softmax", "LogSoftmax", reads=("axis",))
def _softmax(call: Call) -> Operand:
    x, rank = call.x, len(call.x.shape)
    op = "_softmax.default" if call.op == "Softmax" else "_log_softmax.default"
    if call.opset >= 13:
        axis = call.axis(call.attribute("axis", -1), rank)
        return call.emit(op, call.builder.full(x), axis + 1, False).reshaped(x.shape)
    # Before opset 13: over all axes from ``axis`` on, flattened.
    axis = call.axis(call.attribute("axis", 1), rank)
    flat = call.held(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return call.emit(op, flat, 2, False).reshaped(x.shape)


@translates("MatMul")
def product(call: Call) -> Operand:
    """Emit the product of two matrices, or of stacks of them."""
    a, b = _two(call)
    shape = _product_shape(call, tuple(a.shape), tuple(b.shape))
    if isinstance(b, Tensor) and b.dim() == 2 and isinstance(a, Value):
        x = call.held(a, a.shape[1:]) if len(a.shape) > 1 and a.shape[0] == 1 else call.builder.full(a)
        return call.emit("linear.default", x, b.t().contiguous()).reshaped(shape)
    left, right = _matrix(call, a, (1, -1)), _matrix(call, b, (-1, 1))
    depth = max(len(left.shape), len(right.shape)) - 2
    operands = [_deeper(call, each, depth) for each in (left, right)]
    return call.emit("matmul.default", *operands).reshaped(shape)


def _matrix(call: Call, operand: Operand, single: tuple[int, int]) -> Operand:
    """Return a vector as a matrix of one row or column."""
    if len(operand.shape) != 1:
        return call.builder.full(operand) if isinstance(operand, Value) else operand
    size = operand.shape[0]
    shape = tuple(size if n == -1 else 1 for n in single)
    return call.held(operand, shape).reshaped(shape) if isinstance(operand, Value) else operand.reshape(shape)


def _deeper(call: Call, operand: Operand, depth: int) -> Operand:
    """Give an operand as many axes behind the batch axis as the other operand of a product has."""
    if isinstance(operand, Tensor):
        return operand
    shape = (*([1] * (depth + 2 - len(operand.shape))), *operand.shape)
    return call.held(operand, shape)


def _product_shape(call: Call, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    left, right = a if len(a) > 1 else (1, *a), b if len(b) > 1 else (*b, 1)
    if not a or not b or left[-1] != right[-2]:
        raise call.refuse(f"shapes {list(a)} and {list(b)} cannot be multiplied")
    ends = (*left[-2:-1][: len(a) - 1], *right[-1:][: len(b) - 1])
    return (*broadcast([left[:-2], right[:-2]], call.where), *ends)


@translates("Gemm", reads=("alpha", "beta", "transA", "transB"))
def _gemm(call: Call) -> Operand:
    a, b = _two(call)
    alpha, beta = float(call.attribute("alpha", 1.0)), float(call.attribute("beta", 1.0))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise call.refuse(f"its operands have shapes {list(a.shape)} and {list(b.shape)}; they must be matrices")
    bias = call.operand(2)
    if call.attribute("transA", 0):
        a = a.t() if isinstance(a, Tensor) else _transposed(call, a)
    transposed = bool(call.attribute("transB", 0))
    inner = b.shape[1] if transposed else b.shape[0]
    if a.shape[1] != inner:
        raise call.refuse(f"it multiplies {a.shape[1]} columns by {inner} rows")
    shape = (int(a.shape[0]), int(b.shape[0] if transposed else b.shape[1]))
    if isinstance(b, Tensor) and isinstance(a, Value):
        weight = (b if transposed else b.t()).contiguous()
        x = call.held(a, a.shape[1:] if a.shape[0] == 1 else a.shape)
        plain = isinstance(bias, Tensor) and bias.numel() in (shape[1],) and bias.shape[-1:] == (shape[1],)
        if plain and alpha == beta == 1 and isinstance(bias, Tensor):
            return call.emit("linear.default", x, weight, bias.reshape(-1)).reshaped(shape)
        product = call.emit("linear.default", x, weight)
    else:
        if transposed:
            b = b.t() if isinstance(b, Tensor) else _transposed(call, b)
        parts = [call.builder.full(each) if isinstance(each, Value) else each.contiguous() for each in (a, b)]
        product = call.emit("matmul.default", *parts)
    product = product.reshaped(shape)
    if alpha != 1:
        product = call.emit("mul.Tensor", product, torch.tensor(alpha)).reshaped(shape)
    if bias is None or beta == 0:
        return product
    if beta != 1:
        if not isinstance(bias, Tensor):
            raise call.refuse(f"beta={beta} with a bias that varies")
        bias = bias * torch.tensor(beta)
    (left, right), _ = call.aligned(product, bias)
    return call.emit("add.Tensor", left, right).reshaped(shape)


def _transposed(call: Call, value: Value) -> Value:
    return call.emit("permute.default", call.builder.full(value), [0, 2, 1])
