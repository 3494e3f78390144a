"""Program -> the plain list of steps that certificates are checked on: a few operations, numbers and arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.errors import GraphError
from surebound.graph.program import First, Node, Program
from surebound.graph.walk import Env, forward


@dataclass
class Flat:
    """A network of numbered values, 0 the input: JSON-able steps and the arrays they name (docs/certificates.md)."""

    input: tuple[int, ...]  # its shape, without the batch
    steps: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    relus: list[str] = field(default_factory=list)  # the calls of the program that are ReLU steps, in order
    readers: dict[int, int] = field(default_factory=dict)  # numbers of values that ReLU steps read -> which ReLU
    values: dict[str, int] = field(default_factory=dict)  # numbers of the program's values
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)  # of values, by number, without the batch

    def add(self, op: str, inputs: list[int], **given: Any) -> int:
        """Add a step and return the number of its value; tensors become arrays."""
        step: dict[str, Any] = {"op": op, "in": inputs}
        for name, value in given.items():
            if isinstance(value, Tensor):
                key = f"w{len(self.arrays)}"
                self.arrays[key] = np.ascontiguousarray(value.detach().cpu().numpy(), dtype="<f4")
                step[name] = key
            elif value is not None:
                step[name] = value
        if op == "relu":
            self.readers[inputs[0]] = len(self.relus) - 1
        self.steps.append(step)
        return len(self.steps)


@dataclass(frozen=True)
class _Value:
    number: int


@dataclass(frozen=True)
class _FlatCall:
    node: Node
    args: Mapping[str, Any]
    flat: Flat
    sample: Tensor  # its value for one example: gives the shape

    def number(self, name: str) -> int:
        value = self.args[name]
        if not isinstance(value, _Value):
            raise self.refused(f"{name} does not depend on the input")
        return value.number

    def constant(self, name: str) -> Tensor | None:
        value = self.args.get(name)
        if isinstance(value, _Value):
            raise self.refused(f"{name} depends on the input")
        return None if value is None else torch.as_tensor(value, dtype=torch.float32)

    def refused(self, why: str) -> GraphError:
        return GraphError(f"{self.node.op} has no certificate: {why}")


Flattener = Callable[[_FlatCall], int]
FLATTENERS: dict[str, Flattener] = {}


def _flattens(*operators: str) -> Callable[[Flattener], Flattener]:
    def register(flattener: Flattener) -> Flattener:
        FLATTENERS.update({f"aten.{operator}": flattener for operator in operators})
        return flattener

    return register


@_flattens("linear.default", "addmm.default", "mm.default", "matmul.default")
def _dense(call: _FlatCall) -> int:
    kind = call.node.op.split(".")[1]
    x, weight = {"linear": ("input", "weight"), "addmm": ("mat1", "mat2"), "mm": ("self", "mat2")}.get(
        kind, ("self", "other")
    )
    w = call.constant(weight)
    if w is None or w.dim() != 2 or call.args.get("beta", 1) != 1 or call.args.get("alpha", 1) != 1:
        raise call.refused("its weight is no matrix, or it is scaled")
    bias = {"linear": "bias", "addmm": "self"}.get(kind)
    b = None if bias is None else call.constant(bias)
    if b is not None and b.dim() == 2:
        b = _of_example(b, call)
    return call.flat.add("dense", [call.number(x)], weight=w if kind == "linear" else w.t(), bias=b)


@_flattens("conv2d.default")
def _conv(call: _FlatCall) -> int:
    padding = call.args.get("padding", 0)
    if isinstance(padding, str):
        raise call.refused(f"padding={padding!r}")
    windows = _windows(call, call.constant("weight").shape[2:])  # type: ignore[union-attr]
    return call.flat.add(
        "conv", [call.number("input")], weight=call.constant("weight"), bias=call.constant("bias"),
        groups=int(call.args.get("groups", 1)), **windows,
    )  # fmt: skip


def _windows(call: _FlatCall, kernel: Any, stride: Any = 1) -> dict[str, list[int]]:
    pad = _pair(call.args.get("padding", 0))
    return {
        "kernel": [int(n) for n in kernel],
        "stride": _pair(call.args.get("stride") or stride),
        "pads": [*pad, *pad],
        "dilation": _pair(call.args.get("dilation", 1)),
    }


def _pair(value: Any) -> list[int]:
    values = [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    return values * 2 if len(values) == 1 else values


@_flattens("avg_pool2d.default", "max_pool2d.default", "max_pool2d_with_indices.default")
def _pool(call: _FlatCall) -> int:
    kernel = _pair(call.args["kernel_size"])
    windows = _windows(call, kernel, kernel)
    if call.args.get("ceil_mode") or call.args.get("divisor_override") is not None:
        raise call.refused("ceil_mode or divisor_override")
    if "max" in call.node.op:
        return call.flat.add("max", [call.number("self")], **windows)
    if any(windows["pads"]) and not call.args.get("count_include_pad", True):
        raise call.refused("count_include_pad=False")
    return call.flat.add("average", [call.number("self")], **windows)


@_flattens("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default", "mean.dim")
def _global(call: _FlatCall) -> int:
    x = call.number("self")
    shape = call.flat.shapes[x]
    axes = sorted(int(d) % 4 for d in call.args.get("dim", (2, 3)))
    if len(shape) != 3 or axes != [2, 3] or any(n != 1 for n in _pair(call.args.get("output_size", 1))):
        raise call.refused("only the mean over all positions of an image is known")
    windows = {"kernel": list(shape[1:]), "stride": [1, 1], "pads": [0] * 4, "dilation": [1, 1]}
    found = call.flat.add("average", [x], **windows)
    return call.flat.add("reshape", [found], shape=list(call.sample.shape[1:]))


@_flattens("_native_batch_norm_legit_no_training.default")
def _normalise(call: _FlatCall) -> int:
    mean, variance = call.constant("running_mean"), call.constant("running_var")
    weight, bias = call.constant("weight"), call.constant("bias")
    if mean is None or variance is None:
        raise call.refused("it has no running statistics")
    weight = torch.ones_like(mean) if weight is None else weight
    bias = torch.zeros_like(mean) if bias is None else bias
    return call.flat.add(
        "normalise", [call.number("input")], weight=weight, bias=bias, mean=mean, variance=variance,
        eps=float(call.args["eps"]),
    )  # fmt: skip


@_flattens("add.Tensor", "sub.Tensor", "add.Scalar", "sub.Scalar")
def _add(call: _FlatCall) -> int:
    if call.args.get("alpha", 1) != 1:
        raise call.refused("alpha")
    minus = -1 if call.node.op.startswith("aten.sub") else 1
    terms = [(call.args["self"], 1), (call.args["other"], minus)]
    varying = [(value.number, sign) for value, sign in terms if isinstance(value, _Value)]
    constant = [torch.as_tensor(v, dtype=torch.float32) * s for v, s in terms if not isinstance(v, _Value)]
    bias = _of_example(constant[0], call) if constant else None
    return call.flat.add("add", [n for n, _ in varying], signs=[s for _, s in varying], bias=bias)


@_flattens("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar")
def _scale(call: _FlatCall) -> int:
    divide = call.node.op.startswith("aten.div")
    first, second = call.args["self"], call.args["other"]
    x, factor = (second, first) if isinstance(second, _Value) and not divide else (first, second)
    if isinstance(factor, _Value) or not isinstance(x, _Value) or call.args.get("rounding_mode"):
        raise call.refused("a product of two values that vary, or a quotient by one")
    scale = _of_example(torch.as_tensor(factor, dtype=torch.float32), call)
    return call.flat.add("scale", [x.number], scale=scale, divide=True if divide else None)


def _of_example(value: Tensor, call: _FlatCall) -> Tensor:
    """Return a constant without its batch axis."""
    if value.dim() < call.sample.dim():
        return value
    if value.shape[0] != 1:
        raise call.refused("a constant that differs by example")
    return value[0]


@_flattens("view.default", "reshape.default", "flatten.using_ints", "unsqueeze.default", "squeeze.dim", "squeeze.dims",
           "_unsafe_view.default", "clone.default", "alias.default", "detach.default", "contiguous.default",
           "dropout.default")  # fmt: skip
def _reshape(call: _FlatCall) -> int:
    x = call.number("self" if "self" in call.args else "input")
    shape = tuple(call.sample.shape[1:])
    if call.sample.shape[0] != 1 or math.prod(shape) != math.prod(call.flat.shapes[x]):
        raise call.refused("it changes the batch")
    return call.flat.add("reshape", [x], shape=list(shape))


@_flattens("index_select.default", "slice.Tensor", "select.int")
def _choose(call: _FlatCall) -> int:
    """Choose entries of a list of numbers: a product with a matrix of zeros and ones, which rounds nothing."""
    x = call.number("self")
    shape = call.flat.shapes[x]
    if len(shape) != 1 or call.args.get("dim", 0) not in (1, -1):
        raise call.refused("only entries of a list are chosen, not parts of an image")
    numbers = torch.arange(shape[0]).unsqueeze(0)
    if "index" in call.args:
        index = call.args["index"]
        chosen = numbers[0][index if isinstance(index, Tensor) else [int(index)]]
    else:
        chosen = numbers[0][call.args.get("start") or 0 : call.args.get("end") : call.args.get("step", 1)]
    found = call.flat.add("dense", [x], weight=torch.eye(shape[0])[chosen])
    after = list(call.sample.shape[1:])
    return found if after == [len(chosen)] else call.flat.add("reshape", [found], shape=after)


@_flattens("permute.default", "transpose.int")
def _transpose(call: _FlatCall) -> int:
    rank = call.sample.dim()
    order = list(range(rank))
    if "dims" in call.args:
        order = [int(d) % rank for d in call.args["dims"]]
    else:
        a, b = int(call.args["dim0"]) % rank, int(call.args["dim1"]) % rank
        order[a], order[b] = order[b], order[a]
    if order[0] != 0:
        raise call.refused("it moves the batch")
    return call.flat.add("transpose", [call.number("self")], order=[i - 1 for i in order[1:]])


@_flattens("relu.default", "leaky_relu.default")
def _relu(call: _FlatCall) -> int:
    slope = float(np.float32(call.args.get("negative_slope", 0.01))) if "leaky" in call.node.op else 0.0
    if not 0 <= slope < 1:
        raise call.refused(f"a slope of {slope}")
    call.flat.relus.append(call.node.name)
    return call.flat.add("relu", [call.number("self")], left=slope)


#: Curves that the checker knows, with the parameters of the operator that it knows them for.
_CURVES: dict[str, dict[str, Any]] = {
    "sigmoid": {}, "tanh": {}, "atan": {}, "sin": {}, "cos": {}, "erf": {}, "silu": {}, "gelu": {"approximate": "none"},
    "softplus": {"beta": 1, "threshold": 20}, "elu": {"alpha": 1, "scale": 1, "input_scale": 1},
}  # fmt: skip


@_flattens(*(f"{name}.default" for name in _CURVES))
def _curve(call: _FlatCall) -> int:
    name = call.node.op.split(".")[1]
    for option, known in _CURVES[name].items():
        if call.args.get(option, known) != known:
            raise call.refused(f"{option}={call.args[option]}; {known} is known")
    return call.flat.add("curve", [call.number("self")], name=name)


@_flattens("clamp.default", "clamp_min.default", "clamp_max.default", "hardtanh.default", "relu6.default")
def _clamp(call: _FlatCall) -> int:
    names = ("min_val", "max_val") if "hardtanh" in call.node.op else ("min", "max")
    defaults = {"hardtanh": (-1.0, 1.0), "relu6": (0.0, 6.0)}.get(call.node.op.split(".")[1], (None, None))
    low, high = (call.args.get(name, value) for name, value in zip(names, defaults, strict=True))
    if any(isinstance(end, (Tensor, _Value)) for end in (low, high)):
        raise call.refused("its ends are tensors")
    return _between(call, call.number("self"), low, high)


@_flattens("hardsigmoid.default")
def _hard_sigmoid(call: _FlatCall) -> int:
    sixth = call.flat.add("scale", [call.number("self")], scale=torch.tensor(6.0), divide=True)
    moved = call.flat.add("add", [sixth], signs=[1], bias=torch.tensor(0.5))
    return _between(call, moved, 0.0, 1.0)


@_flattens("abs.default")
def _abs(call: _FlatCall) -> int:
    """Add the steps of |x| = 2 max(x, 0) - x, which rounds nothing."""
    x = call.number("self")
    twice = call.flat.add("scale", [_rectified(call, x)], scale=torch.tensor(2.0))
    return call.flat.add("add", [twice, x], signs=[1, -1])


def _between(call: _FlatCall, x: int, low: float | None, high: float | None) -> int:
    """Keep a value between two numbers by ReLUs: max(x, a) = a + max(x - a, 0), min(x, b) = b - max(b - x, 0)."""
    if low is not None and high is not None and low > high:
        raise call.refused(f"between {low} and {high}")
    for end, sign in ((low, 1), (high, -1)):
        if end is not None and math.isfinite(end):
            bias = torch.tensor(float(end))
            over = call.flat.add("add", [x], signs=[sign], bias=-sign * bias) if end else x
            if not end and sign < 0:
                over = call.flat.add("add", [x], signs=[-1])
            over = _rectified(call, over)
            x = call.flat.add("add", [over], signs=[sign], bias=bias) if end or sign < 0 else over
    return x


def _rectified(call: _FlatCall, x: int) -> int:
    """Add a ReLU step that is no ReLU of the program."""
    call.flat.relus.append(f"{call.node.name}#{len(call.flat.relus)}")
    return call.flat.add("relu", [x], left=0.0)


def flatten(program: Program) -> Flat:
    """Return the steps of a network; GraphError names an operator that certificates do not cover."""
    graph = program.graph
    shape = tuple(int(n or 1) for n in graph.input_shape[1:])
    flat = Flat(shape, shapes={0: shape})
    known: dict[str, Any] = {**program.parameters(), graph.input: _Value(0)}

    def visit(node: Node, values: Env) -> Any:
        """Run a call on an image of zeros, for its shape, and add the step of one that varies."""
        value = known[node.name] = node.run(values)
        if node.varies and isinstance(value, Tensor):
            if node.op not in FLATTENERS:
                raise GraphError(f"{node.op} has no certificate: the checker does not know it")
            call = _FlatCall(node, _arguments(node, known), flat, value)
            number = FLATTENERS[node.op](call)
            known[node.name], flat.values[node.name] = _Value(number), number
            flat.shapes[len(flat.steps)] = tuple(value.shape[1:])
        return value

    if graph.dtype != torch.float32:
        raise GraphError(f"the network computes in {graph.dtype}; certificates are about float32 networks")
    with torch.no_grad():
        forward(graph.steps, {**program.parameters(), graph.input: torch.zeros(1, *shape)}, visit, graph.output)
    found = known[graph.output]
    if not isinstance(found, _Value) or found.number != len(flat.steps):
        raise GraphError("the network's output is not its last value")
    return flat


def _arguments(node: Node, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by the names of the operator's schema."""
    target: Any = node.target.target if isinstance(node.target, First) else node.target
    names = [argument.name for argument in target._schema.arguments]
    args, kwargs = node.arguments(known)
    return {**dict(zip(names, args, strict=False)), **kwargs}
