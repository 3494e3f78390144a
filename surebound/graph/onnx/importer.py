"""ONNX -> Graph: walk a file's calls, fold what is constant, translate what depends on the input."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surebound.errors import GraphError, UnsupportedOperatorError, first_line
from surebound.graph.onnx import (
    arithmetic,
    composite,
    cuts,
    layers,
    logic,
    places,
    quantised,
    recurrent,
    shapes,
)
from surebound.graph.onnx.build import Builder, ImportedNetwork, Value, broadcast, check_size
from surebound.graph.onnx.call import (
    TRANSLATIONS,
    TYPES,
    WHOLE,
    Call,
    Operand,
    Types,
    attributes_of,
    check_attributes,
    kept,
)
from surebound.graph.onnx.file import Model, tensor_of

__all__ = ["FOLDED", "Environment", "import_model", "imported", "network_of", "operators"]

_LOADED = (arithmetic, composite, cuts, layers, logic, places, quantised, recurrent, shapes)  # each fills TRANSLATIONS

#: Operators whose result on constants is exact or correctly rounded, so that every implementation agrees on it.
FOLDED = frozenset(
    {
        "Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "Ceil", "Clip", "Compress", "Concat", "Constant",
        "ConstantOfShape", "DepthToSpace", "DequantizeLinear", "Div", "Equal", "Expand", "EyeLike", "Flatten",
        "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN",
        "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "OneHot", "Or", "Pad", "Range",
        "Reciprocal", "ReduceMax", "ReduceMin", "Relu", "Reshape", "Round", "ScatterElements", "ScatterND", "Shape",
        "Sign", "Size", "Slice", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Trilu",
        "Unsqueeze", "Where", "Xor",
    }
)  # fmt: skip
#: Those that are exact on whole numbers.
_ON_WHOLE = frozenset({"CumSum", "ReduceProd", "ReduceSum", "MatMul", "Sum"})


@dataclass(frozen=True)
class Environment:
    """Every tensor of a file by its name there."""

    model: Model
    values: Mapping[str, Operand]

    def value(self, name: str) -> Value:
        """Return a tensor that depends on the input, by its name; refuse any other."""
        found = self.values.get(name)
        if found is None:
            raise GraphError(f"{self.model.source} has no tensor named {name!r}")
        if not isinstance(found, Value):
            raise GraphError(f"{self.model.source}: {name!r} does not depend on the network's input")
        return found


def operators() -> list[str]:
    """Return the ONNX operators that can be imported, by name."""
    return sorted(set(TRANSLATIONS) | FOLDED)


def import_model(builder: Builder, model: Model, inputs: Sequence[Value]) -> Environment:
    """Write a model into a Graph, its inputs given as values of the declared shapes."""
    _check_types(model, inputs)
    known = (set(TRANSLATIONS) | FOLDED | _ON_WHOLE) if model.nodes else set()
    missing = sorted({node.op_type for node in model.nodes} - known)
    if missing:
        raise UnsupportedOperatorError(
            f"{model.source} uses operators that cannot be imported: {', '.join(missing)}. "
            "`surebound supports --onnx-operators` lists those that can."
        )
    env: dict[str, Operand] = dict(model.weights)
    for declared, value in zip(model.inputs, inputs, strict=True):
        if math.prod(value.shape) != math.prod(declared.shape):
            raise GraphError(
                f"{model.source}: the input {declared.name!r} has shape {list(declared.shape)}, not {list(value.shape)}"
            )
        env[declared.name] = value.reshaped(declared.shape)
    for node in model.nodes:
        _step(builder, model, node, env)
    for name, _ in model.outputs:
        if name not in env:
            raise GraphError(f"{model.source}: nothing computes the output {name!r}")
    return Environment(model, env)


def refused(model: Model) -> list[Any]:
    """List the calls of a file that keep it from being imported, by their operators: all of them at once."""
    varying, found = {each.name for each in model.inputs}, []
    for node in model.nodes:
        varies = not varying.isdisjoint(node.input)
        if node.op_type not in TRANSLATIONS and (varies or node.op_type not in FOLDED | _ON_WHOLE):
            found.append(node)
        if varies and node.op_type not in ("Shape", "Size"):
            varying.update(node.output)
    return found


def network_of(model: Model) -> ImportedNetwork:
    """Return the network of a model with one input and one output, example by example: (B, *input) -> (B, K)."""
    return imported(model)[1]


def imported(model: Model) -> tuple[Environment, ImportedNetwork]:
    """Return ``network_of`` together with every tensor of the file."""
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise GraphError(
            f"{model.source} has {len(model.inputs)} inputs and {len(model.outputs)} outputs; "
            "a network of its own has one of each (queries may have several)"
        )
    shape = model.inputs[0].shape
    builder = Builder(shape[1:] if len(shape) > 1 and shape[0] == 1 else shape)
    env = import_model(builder, model, [builder.input.reshaped(shape)])
    return env, builder.finish(env.value(model.outputs[0][0]))


def _check_types(model: Model, inputs: Sequence[Value]) -> None:
    given = zip(model.inputs, inputs, strict=True)
    wrong = [f"{each.name!r} is {each.dtype}" for each, value in given if each.dtype != value.dtype]
    wrong += [f"{name!r} is {dtype}" for name, dtype in model.outputs if dtype not in ("float32", *WHOLE)]
    if wrong:
        raise GraphError(f"{model.source}: {', '.join(wrong)}; only float32 networks are supported")


def _step(builder: Builder, model: Model, node: Any, env: dict[str, Operand]) -> None:
    where = f"{model.source}: {node.op_type}" + (f" {node.name!r}" if node.name else "")
    try:
        operands = [env[name] if name else None for name in node.input]
    except KeyError as error:
        raise GraphError(f"{where} reads {error.args[0]!r}, which nothing computes") from None
    results = _results(node, where)
    made: Any = None
    if not any(isinstance(each, Value) for each in operands):
        made = _fold(model, node, operands, where)
        if made is None:  # bounded like what varies: they hold of every implementation
            place = doubtful(operands)
            constant = None if place is None else operands[place]
            if place is None or not isinstance(constant, Tensor) or node.op_type not in TRANSLATIONS:
                raise GraphError(
                    f"{where} computes a constant in an arithmetic that differs between implementations; "
                    "fold the constants of the model first (onnxsim, or export with constant folding)"
                )
            operands[place] = builder.spread(constant, bounded=True)
    if made is None:
        if node.op_type not in TRANSLATIONS:
            raise UnsupportedOperatorError(f"{where} depends on the input; there it cannot be imported")
        check_attributes(node, model.opset, where)
        call = Call(node.op_type, attributes_of(node), operands, len(results), model.opset, builder, where)
        wrong = [each.dtype for each in operands if isinstance(each, Value) and each.whole]
        if wrong and TYPES[node.op_type] is Types.FLOAT:
            raise GraphError(f"{where} reads {wrong[0]} values that depend on the input; it is supported for float32")
        try:
            made = kept(call, TRANSLATIONS[node.op_type](call))
        except GraphError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise GraphError(f"{where} cannot be imported: {str(error).splitlines()[0]}") from error
    for name, value in zip(results, made if isinstance(made, list) else [made], strict=False):
        env[name] = value


def _results(node: Any, where: str) -> list[str]:
    """Return the names of a call's results; only the last ones may be left out, as those of by-products are."""
    names = list(node.output)
    while len(names) > 1 and not names[-1] and node.op_type != "Split":
        names.pop()
    if not all(names):
        raise GraphError(f"{where} leaves out one of its results, which onnxruntime cannot run; name all of them")
    return names


def doubtful(operands: Sequence[Operand | None]) -> int | None:
    """Return the place of the constant that is bounded like what varies where implementations may differ."""
    floats = [isinstance(each, Tensor) and each.dtype == torch.float32 for each in operands]
    return floats.index(True) if True in floats else None


def _fold(model: Model, node: Any, operands: Sequence[Operand | None], where: str) -> list[Tensor] | None:
    """Compute a call on constants; None if implementations may differ."""
    tensors = [each if isinstance(each, Tensor) else None for each in operands]
    if node.op_type == "Constant":
        return [_constant(node, where)]
    whole = all(each is None or not each.is_floating_point() for each in tensors)
    if node.op_type not in FOLDED and not (whole and node.op_type in _ON_WHOLE) and not _one_term(node, tensors):
        return None
    _check_folding(node, tensors, where)
    made = (
        [_dequantised(node, tensors, where)] if _plain_dequantisation(node) else _reference(model, node, tensors, where)
    )
    if any(each.is_floating_point() and each.dtype != torch.float32 for each in made):
        raise GraphError(f"{where} makes {made[0].dtype} numbers; weights are float32")
    return made


def _plain_dequantisation(node: Any) -> bool:
    """Is it (x - zero) scale, per tensor or along an axis? The reference knows only newer versions of the operator."""
    return node.op_type == "DequantizeLinear" and {each.name for each in node.attribute} <= {"axis"}


def _dequantised(node: Any, tensors: Sequence[Tensor | None], where: str) -> Tensor:
    """Compute a constant's numbers: an exact difference, converted and multiplied with one rounding each."""
    x, scale, zero = (*tensors, None)[:3]
    if x is None or scale is None or scale.dtype != torch.float32 or x.is_floating_point():
        raise GraphError(f"{where} needs whole numbers and a float32 scale")
    axis = int(attributes_of(node).get("axis", 1)) if scale.numel() > 1 else 0
    shape = [1] * x.dim()
    if scale.numel() > 1:
        if scale.dim() != 1 or not -x.dim() <= axis < x.dim() or scale.numel() != x.shape[axis]:
            raise GraphError(f"{where}: scales of shape {list(scale.shape)} for axis {axis} of {list(x.shape)}")
        shape[axis] = -1
    apart = x.long() if zero is None else x.long() - zero.long().reshape(shape if zero.numel() > 1 else [1] * x.dim())
    return apart.to(torch.float32) * scale.reshape(shape)


def _one_term(node: Any, tensors: Sequence[Tensor | None]) -> bool:
    """Is it a product of matrices in which every sum has one term at most, and that one is exact?"""
    if node.op_type != "MatMul" or any(each is None or each.dim() == 0 for each in tensors):
        return False
    a, b = (each.double() for each in tensors if each is not None)
    if not bool((torch.matmul((a != 0).double(), (b != 0).double()) <= 1).all()):
        return False
    product = torch.matmul(a, b)
    return torch.equal(product, product.float().double())


def _constant(node: Any, where: str) -> Tensor:
    found = attributes_of(node)
    if "value" in found:
        return tensor_of(found["value"], where)
    for kind, dtype in (("float", torch.float32), ("int", torch.int64)):
        for name in (f"value_{kind}", f"value_{kind}s"):
            if name in found:
                return torch.tensor(found[name], dtype=dtype)
    raise GraphError(f"{where} holds no number")


def _check_folding(node: Any, tensors: Sequence[Tensor | None], where: str) -> None:
    """Refuse a constant that is larger than what fits memory, whatever a small file asks for."""
    first, second = (*tensors, None, None)[:2]
    if node.op_type == "ConstantOfShape" and first is not None:
        check_size([int(v) for v in first.tolist()], where)
    if node.op_type in ("Expand", "Tile") and first is not None and second is not None:
        check_size([first.numel(), *(max(1, int(v)) for v in second.tolist())], where)
    if node.op_type == "Pad" and first is not None:
        pads = second.tolist() if second is not None else attributes_of(node).get("pads", [])
        check_size([first.numel() + sum(abs(int(v)) for v in pads)] * max(1, first.dim()), where)
    if node.op_type == "Range" and all(each is not None for each in tensors):
        start, limit, delta = (float(each) for each in tensors if each is not None)
        check_size([math.ceil(abs((limit - start) / delta)) if delta else 1 << 62], where)
    if node.op_type == "OneHot" and first is not None and second is not None:
        check_size([first.numel(), max(1, int(second.reshape(-1)[0]))], where)
    shapes = [each.shape for each in tensors if each is not None]
    if node.op_type in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Where", "Equal", "Less", "Greater"):
        check_size(broadcast(shapes, where), where)


def _reference(model: Model, node: Any, tensors: Sequence[Tensor | None], where: str) -> list[Tensor]:
    """Run ONNX's own reference implementation of one call."""
    onnx = importlib.import_module("onnx")
    helper = importlib.import_module("onnx.helper")
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator
    feeds = {name: each.numpy() for name, each in zip(node.input, tensors, strict=True) if each is not None}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "constant", inputs, outputs)
    single = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", model.opset)], ir_version=min(onnx.IR_VERSION, 10)
    )
    try:
        found = evaluator(single).run(None, feeds)
        return [torch.from_numpy(np.array(each)) for each in found]
    except Exception as error:
        raise GraphError(f"{where} cannot be computed: {first_line(error)}") from error
