"""Translations of operators that are compositions of others: norms, normalisation by own statistics, quantisation."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

import torch
from torch import Tensor

from surebound.graph.decompose import ABOUT
from surebound.graph.onnx.build import Shape, Value
from surebound.graph.onnx.call import WHOLE, Call, Operand, Types, translates


def _axes(call: Call, given: Sequence[int] | None) -> tuple[list[int], Shape]:
    """Return the axes to reduce, counted from the front, and the result's shape; none given: all."""
    rank = len(call.x.shape)
    drop = sorted({call.axis(a, rank) for a in given}) if given else list(range(rank))
    keep = bool(call.attribute("keepdims", 1))
    shape = [1 if i in drop else n for i, n in enumerate(call.x.shape)]
    return drop, tuple(shape if keep else [n for i, n in enumerate(call.x.shape) if i not in drop])


@translates(
    "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
    reads=("axes", "keepdims", "noop_with_empty_axes"),
)  # fmt: skip
def _norm(call: Call) -> Operand:
    axes = call.integers(1, "axes")
    if not axes and call.attribute("noop_with_empty_axes", 0):
        raise call.refuse("noop_with_empty_axes=1 without axes is not supported")
    drop, shape = _axes(call, axes)
    x, at = call.builder.full(call.x), [axis + 1 for axis in drop]
    if call.op == "ReduceLogSumExp":
        return call.emit("logsumexp.default", x, at, True).reshaped(shape)
    if call.op == "ReduceL2":
        return call.emit("linalg_vector_norm.default", x, 2, at, True).reshaped(shape)
    if call.op != "ReduceLogSum":
        x = call.emit("abs.default", x) if call.op == "ReduceL1" else call.emit("pow.Tensor_Scalar", x, 2)
    total = call.emit("sum.dim_IntList", x, at, True)
    return (call.emit("log.default", total) if call.op == "ReduceLogSum" else total).reshaped(shape)


@translates("LpNormalization", reads=("axis", "p"))
def _lp_normalization(call: Call) -> Operand:
    x, axis = call.x, call.axis(int(call.attribute("axis", -1)), len(call.x.shape))
    held = call.builder.full(x)
    norm = call.emit("linalg_vector_norm.default", held, int(call.attribute("p", 2)), [axis + 1], True)
    return call.emit("div.Tensor", held, norm).reshaped(x.shape)


def _standardised(call: Call, x: Value, axes: list[int], eps: float) -> tuple[Value, Value]:
    """Subtract the mean over axes and divide by the root of the variance plus eps; also the size of what is added up.

    As graph/decompose.py does for PyTorch's operators, and with the same roundings.
    """
    roundings = 4.0 * math.prod(x.item[axis - 1] for axis in axes) + 16
    largest = call.emit("amax.default", call.emit("abs.default", x), axes, True)
    mean = call.emit(ABOUT, call.emit("mean.dim", x, axes, True), largest, roundings)
    apart = call.emit("sub.Tensor", x, mean)
    spread = call.emit("mean.dim", call.emit("pow.Tensor_Scalar", apart, 2), axes, True)
    spread = call.emit(ABOUT, spread, call.emit("pow.Tensor_Scalar", largest, 2), roundings)
    root = _root(call, call.emit("relu.default", spread), eps)
    size = call.emit("div.Tensor", call.emit("mul.Tensor", largest, torch.tensor(2.0)), root)
    return call.emit("div.Tensor", apart, root), size


def _root(call: Call, square: Value, eps: float) -> Value:
    return call.emit("sqrt.default", call.emit("add.Tensor", square, torch.tensor(eps)))


def _scaled(call: Call, x: Value, size: Value, scale: Tensor | None, shift: Tensor | None) -> Value:
    """Return x scale + shift, up to roundings of size |scale| + |shift|."""
    if scale is not None:
        x, size = call.emit("mul.Tensor", x, scale), call.emit("mul.Tensor", size, scale.abs())
    if shift is not None:
        x, size = call.emit("add.Tensor", x, shift), call.emit("add.Tensor", size, shift.abs())
    return call.emit(ABOUT, x, size, 16.0)


@translates("LayerNormalization", "RMSNormalization", reads=("axis", "epsilon", "stash_type"))
def _layer_norm(call: Call) -> Operand:
    if call.results > 1:
        raise call.refuse("its mean and deviation are used; only the first result is supported")
    x, rank = call.builder.full(call.x), len(call.x.shape)
    axes = [a + 1 for a in range(call.axis(int(call.attribute("axis", -1)), rank), rank)]
    eps = float(call.attribute("epsilon", 1e-5))
    if call.op == "RMSNormalization":
        mean = call.emit("mean.dim", call.emit("pow.Tensor_Scalar", x, 2), axes, True)
        made = call.emit("div.Tensor", x, _root(call, mean, eps))
        size = made
    else:
        made, size = _standardised(call, x, axes, eps)
    return _scaled(call, made, size, call.weight(1), call.constant(2)).reshaped(call.x.shape)


@translates("InstanceNormalization", reads=("epsilon",))
def _instance_norm(call: Call) -> Operand:
    x = call.image(call.x)
    rank = len(x.item)
    made = _standardised(call, x, list(range(2, rank + 1)), float(call.attribute("epsilon", 1e-5)))
    scale, shift = (call.weight(i).reshape(-1, *([1] * (rank - 1))) for i in (1, 2))
    return call.from_image(_scaled(call, *made, scale, shift))


@translates("GroupNormalization", reads=("epsilon", "num_groups", "stash_type"))
def _group_norm(call: Call) -> Operand:
    x, groups = call.image(call.x), int(call.attribute("num_groups"))
    channels, *space = x.item
    if groups < 1 or channels % groups:
        raise call.refuse(f"{groups} groups of {channels} channels")
    width = channels // groups
    held = call.held(x, (groups, width, *space))
    made = _standardised(call, held, list(range(2, len(held.item) + 1)), float(call.attribute("epsilon", 1e-5)))
    factors = (call.weight(i).reshape(groups, width, *([1] * len(space))) for i in (1, 2))
    return call.from_image(call.held(_scaled(call, *made, *factors), (channels, *space)))


@translates("GlobalLpPool", reads=("p",))
def _global_lp_pool(call: Call) -> Operand:
    x = call.image(call.x)
    axes = list(range(2, len(x.item) + 1))
    return call.from_image(call.emit("linalg_vector_norm.default", x, int(call.attribute("p", 2)), axes, True))


@translates("LRN", reads=("alpha", "beta", "bias", "size"))
def _local_response(call: Call) -> Operand:
    """Translate x / (bias + alpha/size * sum of squares of neighbouring channels)^beta."""
    x, size = call.image(call.x), int(call.attribute("size"))
    if len(x.item) != 3:
        raise call.refuse(f"its input has shape {list(call.x.shape)}; images (1, C, H, W) are supported")
    channel = torch.arange(x.item[0])
    apart = channel[None, :] - channel[:, None]  # (C, C): from the channel to its neighbour
    near = (apart >= -((size - 1) // 2)) & (apart <= size // 2)
    share, square = float(call.attribute("alpha", 1e-4)) / size, call.emit("pow.Tensor_Scalar", x, 2)
    total = call.emit("conv2d.default", square, near.to(torch.float32)[:, :, None, None] * share, None)
    # An execution may slide the window: add the square that enters, subtract the one that leaves.
    largest = call.emit("mul.Tensor", call.emit("sum.dim_IntList", square, [1], True), torch.tensor(share))
    total = call.emit(ABOUT, total, largest, 4.0 * len(channel) + 16)
    total = call.emit("add.Tensor", total, torch.tensor(float(call.attribute("bias", 1.0))))
    total = call.emit("pow.Tensor_Scalar", total, float(call.attribute("beta", 0.75)))
    made = call.emit("div.Tensor", x, total)  # or the product with the power of -beta
    return call.from_image(call.emit(ABOUT, made, made, 16.0))


@translates("Einsum", reads=("equation",))
def _einsum(call: Call) -> Operand:
    """Translate sums of products, with a letter of its own for our batch axis on what varies."""
    given = str(call.attribute("equation")).replace(" ", "")
    terms, arrow, out = given.partition("->")
    letters = terms.split(",")
    if "." in given or len(letters) != len(call.operands):
        raise call.refuse(f"the equation {given!r}; one list of letters for every operand is supported, no dots")
    if not arrow:
        out = "".join(sorted(c for c in set(terms) - {","} if terms.count(c) == 1))
    batch = next(c for c in string.ascii_letters if c not in given)
    operands: list[Operand] = []
    shape: dict[str, int] = {}
    for i, (word, each) in enumerate(zip(letters, call.operands, strict=True)):
        if each is None or len(word) != len(each.shape):
            raise call.refuse(f"the equation {given!r} does not fit operand {i}")
        shape |= zip(word, each.shape, strict=True)
        if isinstance(each, Value):
            letters[i], each = batch + word, call.builder.full(each)
        operands.append(each)
    made = call.emit("einsum.default", f"{','.join(letters)}->{batch}{out}", operands)
    return made.reshaped(tuple(shape[c] for c in out))


@translates("CastLike")
def _cast_like(call: Call) -> Operand:
    like = call.operand(1)
    if like is None or call.x.dtype != "float32" or not str(like.dtype).endswith("float32"):
        raise call.refuse("it converts between types; use Cast, which says to which")
    return call.x


@translates("CumSum", reads=("exclusive", "reverse"))
def _cumsum(call: Call) -> Operand:
    given = call.constant(1)
    if given is None or call.attribute("exclusive", 0) or call.attribute("reverse", 0):
        raise call.refuse("only plain cumulated sums along a constant axis are supported")
    axis = call.axis(int(given), len(call.x.shape))
    return call.emit("cumsum.default", call.builder.full(call.x), axis + 1)


@translates("Mod", reads=("fmod",), types=Types.SAME)
def _mod(call: Call) -> Operand:
    """Translate a - n b with a whole number n: the quotient cut towards 0, or downwards for whole numbers."""
    x, divisor = call.x, call.constant(1)
    if divisor is None or bool((divisor == 0).any()):
        raise call.refuse("its divisor must be constant and not 0")
    (a, b), shape = call.aligned(x, call.number_like(divisor))
    step = "trunc.default" if call.attribute("fmod", 0) else "floor.default"
    count = call.emit(step, call.emit("div.Tensor", a, b))
    made = call.emit("sub.Tensor", a, call.emit("mul.Tensor", count, b))
    return made.reshaped(shape)


@translates("Shrink", reads=("bias", "lambd"))
def _shrink(call: Call) -> Operand:
    x, bias, size = call.x, float(call.attribute("bias", 0.0)), float(call.attribute("lambd", 0.5))
    shift, zero = torch.tensor(bias), torch.tensor(0.0)
    high = call.emit("where.self", call.emit("gt.Scalar", x, size), call.emit("sub.Tensor", x, shift), zero)
    low = call.emit("add.Tensor", x, shift)
    return call.emit("where.self", call.emit("lt.Scalar", x, -size), low, high).reshaped(x.shape)


def _along(call: Call, values: Tensor, axis: int) -> Tensor:
    """Return numbers per tensor, or per entry of an axis, as they broadcast."""
    if values.numel() == 1:
        return values.reshape(())
    axis = call.axis(axis, len(call.x.shape))
    if values.dim() != 1 or values.numel() != call.x.shape[axis]:
        raise call.refuse(f"scales of shape {list(values.shape)} for axis {axis} of {list(call.x.shape)}")
    return values.reshape(-1, *([1] * (len(call.x.shape) - axis - 1)))


@translates("QuantizeLinear", reads=("axis", "saturate"), types=Types.OWN)
def _quantize(call: Call) -> Operand:
    x, scale, zero = call.x, call.weight(1), call.constant(2)
    kind = "uint8" if zero is None else str(zero.dtype).removeprefix("torch.")
    if kind not in ("uint8", "int8") or x.whole:
        raise call.refuse(f"to {kind}; float32 to uint8 and int8 are supported")
    axis = int(call.attribute("axis", 1)) if scale.numel() > 1 else 0
    (held, size), shape = call.aligned(x, _along(call, scale, axis))
    made = call.emit("round.default", call.emit("div.Tensor", held, size))
    if zero is not None and bool(zero.any()):
        made = call.emit("add.Tensor", made, call.number_of(_along(call, zero, axis)))
        made = call.emit("round.default", made)  # whole again: what follows may jump
    first, beyond = WHOLE[kind]
    return call.emit("clamp.default", made, first, beyond - 1).reshaped(shape).typed(kind, (first, beyond - 1))


@translates("DequantizeLinear", reads=("axis",), types=Types.OWN)
def _dequantize(call: Call) -> Operand:
    x, scale, zero = call.x, call.weight(1), call.constant(2)
    axis = int(call.attribute("axis", 1)) if scale.numel() > 1 else 0
    (held, size), shape = call.aligned(x, _along(call, scale, axis))
    if zero is not None and bool(zero.any()):
        held = call.emit("sub.Tensor", held, call.number_of(_along(call, zero, axis)))
    return call.emit("mul.Tensor", held, size).reshaped(shape).typed("float32")
