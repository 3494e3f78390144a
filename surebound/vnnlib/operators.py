"""Every operator of a file by itself, in onnxruntime and as we import it: what follows it can hide no difference.

Inputs are drawn where operators act: both signs, positive numbers for roots and logarithms, halves and whole numbers
for ties; several draws of each. Of a weighted sum that takes long one draw of both signs says it all: a linear function
with another weight, or another place of it, has another value there.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surebound.bounds.interval import propagate
from surebound.errors import BoundError, TraceMismatchError
from surebound.graph import ImportedNetwork
from surebound.graph.onnx.build import ANY, Builder, Value
from surebound.graph.onnx.call import WHOLE, Operand
from surebound.graph.onnx.file import Model, parse_model
from surebound.graph.onnx.importer import Environment, doubtful, import_model
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.vnnlib.effort import heavy_sum
from surebound.vnnlib.runtime import Array, Session

#: Constants of at most so many numbers say what an operator does (an axis, an exponent); larger ones are weights.
_SMALL = 8

#: Uses of operators that onnxruntime and we agree on, in this process.
_agreed: set[tuple[object, ...]] = set()


def check_operators(env: Environment) -> None:
    """Refuse an imported file unless each of its calls that depend on the input is what onnxruntime computes.

    A use of an operator (attributes, shapes, small constants) is tried once per process; larger weights do not make it
    another one.
    """
    for node in env.model.nodes:
        operands = {name: env.values[name] for name in node.input if name}
        results = {name: env.values[name] for name in node.output if name}
        if not all(isinstance(each, Value) for each in results.values()):
            continue
        if not any(isinstance(each, Value) for each in operands.values()):  # a constant, bounded like what varies
            name = list(operands)[doubtful(list(operands.values())) or 0]
            operands[name] = Value(name, tuple(operands[name].shape), tuple(operands[name].shape))
        use = _use(env.model.opset, node, operands)
        if use not in _agreed:
            made = {name: each for name, each in results.items() if isinstance(each, Value)}
            _check(env.model, node, operands, made)
            _agreed.add(use)


def _use(opset: int, node: Any, operands: dict[str, Operand]) -> tuple[object, ...]:
    """Return what tells one use of an operator from another."""
    attributes = sorted(each.SerializeToString() for each in node.attribute)
    names = list(operands)
    given: list[object] = [names.index(name) if name else -1 for name in node.input]
    for each in operands.values():
        small = isinstance(each, Tensor) and (each.numel() <= _SMALL or not each.is_floating_point())
        value = each.numpy().tobytes() if isinstance(each, Tensor) and small else b""
        given.append((isinstance(each, Value), str(each.dtype), tuple(each.shape), value))
    return opset, node.op_type, len(node.output), *attributes, *given


def _check(model: Model, node: Any, operands: dict[str, Operand], results: dict[str, Value]) -> None:
    where = f"{model.source}: {node.op_type}" + (f" {node.name!r}" if node.name else "")
    single = _alone(model, node, operands, results, where)
    shapes = {name: each.shape for name, each in results.items()}
    network = _network(single)
    session, compared = Session(single), False
    size = math.prod(int(n or 1) for n in network.graph.input_shape[1:])
    for drawn in [_both_signs(size)] if heavy_sum(network.program) else _draws(size):
        flat = _typed(single, drawn)
        found = session.run(_feeds(single, flat))
        for name, shape in shapes.items():
            if found[name].shape != shape:
                raise TraceMismatchError(
                    f"{where}: as imported its result has shape {list(shape)}, in onnxruntime {list(found[name].shape)}"
                )
        expected = np.concatenate([found[name].reshape(-1) for name in shapes])
        compared |= _compare(network, flat, torch.from_numpy(expected.astype(np.float32)), where)
    if not compared:
        raise TraceMismatchError(
            f"{where}: onnxruntime gives no finite numbers for any of the inputs that were tried; it is refused"
        )


def _alone(model: Model, node: Any, operands: dict[str, Operand], results: dict[str, Value], where: str) -> Model:
    """Make a file of this call only; constants stay what they are."""
    helper, numpy_helper = (importlib.import_module(f"onnx.{name}") for name in ("helper", "numpy_helper"))
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(each.dtype)), list(each.shape))
        for name, each in operands.items()
        if isinstance(each, Value)
    ]
    constants = [
        numpy_helper.from_array(each.numpy(), name) for name, each in operands.items() if isinstance(each, Tensor)
    ]
    outputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(each.dtype)), list(each.shape))
        for name, each in results.items()
    ]
    graph = helper.make_graph([node], "alone", inputs, outputs, constants)
    ir_version = max(4, model.proto.ir_version)  # before 4, constants had to be inputs as well
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", model.opset)], ir_version=ir_version)
    return parse_model(made.SerializeToString(), where)


def _network(model: Model) -> ImportedNetwork:
    """Make the call one network, of all its varying operands and results side by side."""
    sizes = [math.prod(each.shape) for each in model.inputs]
    builder, first, parts = Builder((sum(sizes),)), 0, list[Value]()
    for each, size in zip(model.inputs, sizes, strict=True):
        part = builder.input
        if len(sizes) > 1:
            part = builder.call("slice.Tensor", builder.input, 1, first, first + size)
        parts.append(part.reshaped(each.shape).typed(each.dtype, WHOLE.get(each.dtype, ANY)))
        first += size
    env = import_model(builder, model, parts)
    results = [env.value(name) for name, _ in model.outputs]
    flat = [builder.view(each, (math.prod(each.shape),)) for each in results]
    return builder.finish(flat[0] if len(flat) == 1 else builder.call("cat.default", flat, 1))


def _feeds(model: Model, flat: Tensor) -> dict[str, Array]:
    pieces = torch.split(flat, [math.prod(each.shape) for each in model.inputs])
    return {
        each.name: part.numpy().astype(each.dtype).reshape(each.shape)
        for each, part in zip(model.inputs, pieces, strict=True)
    }


def _typed(model: Model, flat: Tensor) -> Tensor:
    """Round draws (N,) to what the element types of the operands hold."""
    pieces = torch.split(flat, [math.prod(each.shape) for each in model.inputs])
    typed = [torch.from_numpy(p.numpy().astype(e.dtype)).float() for e, p in zip(model.inputs, pieces, strict=True)]
    return torch.cat(typed)


def _draws(count: int) -> Iterator[Tensor]:
    """Inputs (N,) in the active range of operators; the same every time."""
    draw = torch.Generator().manual_seed(0)
    unit = torch.rand(2, count, generator=draw)
    yield from (unit[0], 0.25 + 4 * unit[1], _both_signs(count))
    yield 12 * torch.rand(count, generator=draw) - 6
    yield torch.randint(-6, 7, (count,), generator=draw) / 2  # where ties and kinks are
    yield torch.arange(count) / max(1, count - 1)  # every entry another number, in order


def _both_signs(count: int) -> Tensor:
    return 2 * torch.randn(count, generator=torch.Generator().manual_seed(1))


def _compare(network: ImportedNetwork, flat: Tensor, expected: Tensor, where: str) -> bool:
    """Raise if bounds at one point do not contain what onnxruntime computes; was there anything to compare?"""
    try:
        with torch.no_grad():
            bounds = propagate(network.program, Interval.point(flat.unsqueeze(0)), Soundness.DEPLOYED)
    except BoundError:  # outside of the operator's domain
        return False
    known = expected.isfinite() & ~(bounds.lower + bounds.upper).isnan()[0]
    wrong = known & ~bounds.contains(expected.unsqueeze(0))[0]
    if bool(wrong.any()):
        middle = (bounds.lower[0] + bounds.upper[0]) / 2
        worst = float((expected - middle)[wrong].abs().max())
        raise TraceMismatchError(
            f"{where}: as imported it differs from onnxruntime by {worst:.3g}, which is more than rounding explains; "
            "it is refused"
        )
    return bool(known.any())
