"""Program -> ONNX: every call that depends on the input becomes one or two ONNX calls; weights stay what they are.

The file is for one example: an input of shape (1, ...), as verifiers expect it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surebound.errors import GraphError, UnsupportedOperatorError
from surebound.graph.decompose import ABOUT
from surebound.graph.onnx.file import onnx_package
from surebound.graph.program import First, Node, Program
from surebound.graph.walk import Env, forward

OPSET = 17
IR_VERSION = 8


@dataclass
class _Writer:
    """A model in the making."""

    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _kept: list[Tensor] = field(default_factory=list)  # so that ids stay theirs

    def name(self, value: Any) -> str:
        """Return the name of an operand: a varying one has its own, a constant becomes a weight."""
        if isinstance(value, _Varying):
            return value.name
        if not isinstance(value, Tensor):
            value = torch.tensor(value)
        if id(value) not in self._names:
            self._names[id(value)] = f"w{len(self.weights)}"
            self.weights[self._names[id(value)]] = value.detach()
            self._kept.append(value)
        return self._names[id(value)]

    def call(self, op: str, inputs: Sequence[Any], output: str, **attributes: Any) -> str:
        helper = importlib.import_module("onnx.helper")
        names = ["" if each is None else self.name(each) for each in inputs]
        self.nodes.append(helper.make_node(op, names, [output], **attributes))
        return output


@dataclass(frozen=True)
class _Varying:
    name: str
    shape: tuple[int, ...]  # with a batch of one


class _Arguments(dict[str, Any]):
    """A call's arguments by name, that remember which of them were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def tensors(self) -> list[Any]:
        """List those that are tensors, in order."""
        return [self[name] for name, value in self.items() if isinstance(value, (Tensor, _Varying))]


@dataclass(frozen=True)
class _Call:
    """A node with its arguments by name."""

    node: Node
    args: _Arguments
    writer: _Writer
    sample: Tensor  # its value for one example: gives shapes

    @property
    def out(self) -> str:
        return self.node.name

    def emit(self, op: str, *inputs: Any, output: str | None = None, **attributes: Any) -> str:
        return self.writer.call(op, inputs, output or self.out, **attributes)


#: Arguments that say nothing beside the shape of the result, which an exporter takes from there, or its memory.
_BY_SHAPE = frozenset({"size", "shape", "sizes", "start_dim", "end_dim", "memory_format", "implicit", "momentum"})

Exporter = Callable[[_Call], object]
EXPORTS: dict[str, Exporter] = {}


def _exports(*operators: str) -> Callable[[Exporter], Exporter]:
    def register(exporter: Exporter) -> Exporter:
        EXPORTS.update({f"aten.{operator}": exporter for operator in operators})
        return exporter

    return register


_PLAIN = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs",
    "neg": "Neg", "erf": "Erf", "sin": "Sin", "cos": "Cos", "atan": "Atan", "sign": "Sign",
    "reciprocal": "Reciprocal", "hardswish": "HardSwish", "clone": "Identity", "alias": "Identity",
    "detach": "Identity", "contiguous": "Identity", "maximum": "Max", "minimum": "Min",
}  # fmt: skip
_ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}


@_exports(*(f"{name}.default" for name in _PLAIN))
def _plain(call: _Call) -> object:
    return call.emit(_PLAIN[call.node.op.split(".")[1]], *call.args.tensors())


@_exports("softplus.default")
def _softplus(call: _Call) -> object:
    """Export log(1 + exp(beta x)) / beta; where PyTorch replaces it by x, float32 must not see a difference."""
    x, beta = call.args["self"], float(call.args.get("beta", 1))
    if call.args.get("threshold", 20) < 20:
        raise _refused(call, f"threshold={call.args['threshold']}, below which it is not a softplus")
    if beta == 1:
        return call.emit("Softplus", x)
    scaled = call.emit("Mul", x, torch.tensor(beta), output=f"{call.out}_scaled")
    curved = call.emit("Softplus", _Varying(scaled, x.shape), output=f"{call.out}_curved")
    return call.emit("Div", _Varying(curved, x.shape), torch.tensor(beta))


@_exports(*(f"{name}.{kind}" for name in _ARITHMETIC for kind in ("Tensor", "Scalar")))
def _arithmetic(call: _Call) -> object:
    if call.args.get("alpha", 1) != 1 or call.args.get("rounding_mode") is not None:
        raise _refused(call, "a scaled or rounded operation")
    operands = _float(call.args["self"]), _float(call.args["other"])
    return call.emit(_ARITHMETIC[call.node.op.split(".")[1]], *operands)


def _float(value: Any) -> Any:
    return value if isinstance(value, (Tensor, _Varying)) else torch.tensor(float(value))


def _about(call: _Call) -> object:
    """Export the value itself: what roundings it stands for is a matter of proofs."""
    _size, _roundings = call.args["size"], call.args["roundings"]
    return call.emit("Identity", call.args["y"])


EXPORTS[ABOUT] = _about


def _refused(call: _Call, what: str) -> GraphError:
    return GraphError(f"{call.node.op} cannot be exported: {what}")


@_exports("view.default", "reshape.default", "flatten.using_ints", "unsqueeze.default", "squeeze.dim", "squeeze.dims",
          "squeeze.default", "_unsafe_view.default", "unflatten.int", "expand.default")  # fmt: skip
def _reshape(call: _Call) -> object:
    x = call.args["self"]
    if math.prod(x.shape) != call.sample.numel():
        return call.emit("Expand", x, torch.tensor(call.sample.shape))
    return call.emit("Reshape", x, torch.tensor(call.sample.shape))


@_exports("permute.default", "transpose.int", "t.default")
def _permute(call: _Call) -> object:
    x, rank = call.args["self"], len(call.args["self"].shape)
    order = list(range(rank))
    if call.node.op == "aten.permute.default":
        order = [d % rank for d in call.args["dims"]]
    else:
        a, b = (0, 1) if call.node.op == "aten.t.default" else (call.args["dim0"] % rank, call.args["dim1"] % rank)
        order[a], order[b] = order[b], order[a]
    return call.emit("Transpose", x, perm=order)


@_exports("linear.default")
def _linear(call: _Call) -> object:
    x, weight, bias = call.args["input"], call.args["weight"], call.args.get("bias")
    if len(x.shape) == 2:
        inputs = [x, weight] if bias is None else [x, weight, bias]
        return call.emit("Gemm", *inputs, transB=1)
    product = call.emit(
        "MatMul", x, weight.t().contiguous(), output=call.out if bias is None else f"{call.out}_product"
    )
    return product if bias is None else call.emit("Add", _Varying(product, ()), bias)


@_exports("matmul.default", "mm.default", "bmm.default")
def _matmul(call: _Call) -> object:
    return call.emit("MatMul", call.args["self"], call.args.get("other", call.args.get("mat2")))


@_exports("conv1d.default", "conv2d.default", "conv3d.default")
def _conv(call: _Call) -> object:
    weight, bias = call.args["weight"], call.args.get("bias")
    rank = weight.dim() - 2
    padding = _spread(call.args.get("padding", 0), rank)
    inputs = [call.args["input"], weight] if bias is None else [call.args["input"], weight, bias]
    return call.emit(
        "Conv", *inputs, kernel_shape=list(weight.shape[2:]), strides=_spread(call.args.get("stride", 1), rank),
        pads=[*padding, *padding], dilations=_spread(call.args.get("dilation", 1), rank),
        group=call.args.get("groups", 1),
    )  # fmt: skip


def _spread(value: Any, rank: int) -> list[int]:
    values = [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    return values * rank if len(values) == 1 else values


@_exports("_native_batch_norm_legit_no_training.default")
def _batch_norm(call: _Call) -> object:
    a = call.args
    channels = a["running_mean"].shape[0]
    scale = a["weight"] if a.get("weight") is not None else torch.ones(channels)
    shift = a["bias"] if a.get("bias") is not None else torch.zeros(channels)
    inputs = (a["input"], scale, shift, a["running_mean"], a["running_var"])
    return call.emit("BatchNormalization", *inputs, epsilon=float(a["eps"]))


@_exports("constant_pad_nd.default", "pad.default")
def _pad(call: _Call) -> object:
    x, amounts = call.args["self"], [int(v) for v in call.args["pad"]]
    if call.args.get("mode", "constant") != "constant":
        raise _refused(call, f"mode={call.args['mode']!r}")
    rank = len(x.shape)
    before, after = [0] * rank, [0] * rank
    for i in range(len(amounts) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
    value = torch.tensor(float(call.args.get("value") or 0.0))
    return call.emit("Pad", x, torch.tensor([*before, *after]), value)


@_exports("max_pool1d.default", "max_pool2d.default", "max_pool2d_with_indices.default", "max_pool3d.default",
          "avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")  # fmt: skip
def _pool(call: _Call) -> object:
    a, rank = call.args, len(call.args["self"].shape) - 2
    kernel, padding = _spread(a["kernel_size"], rank), _spread(a.get("padding", 0), rank)
    common: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": _spread(a.get("stride") or kernel, rank),
        "pads": [*padding, *padding],
        "ceil_mode": int(bool(a.get("ceil_mode", False))),
    }
    if "max" in call.node.op:
        return call.emit("MaxPool", a["self"], dilations=_spread(a.get("dilation", 1), rank), **common)
    if a.get("divisor_override") is not None:
        raise _refused(call, "divisor_override")
    return call.emit("AveragePool", a["self"], count_include_pad=int(a.get("count_include_pad", True)), **common)


@_exports("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default", "adaptive_avg_pool1d.default")
def _global_pool(call: _Call) -> object:
    if any(int(n) != 1 for n in _spread(call.args["output_size"], 1)):
        raise _refused(call, f"output_size={call.args['output_size']}; only 1 is supported")
    return call.emit("GlobalAveragePool", call.args["self"])


@_exports("mean.dim", "sum.dim_IntList", "amax.default", "amin.default")
def _reduce(call: _Call) -> object:
    axes, keep = [int(d) for d in call.args["dim"]], int(call.args.get("keepdim", False))
    x = call.args["self"]
    if call.node.op == "aten.sum.dim_IntList":
        return call.emit("ReduceSum", x, torch.tensor(axes), keepdims=keep)
    names = {"mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin"}
    return call.emit(names[call.node.op.split(".")[1]], x, axes=axes, keepdims=keep)


@_exports("leaky_relu.default")
def _leaky(call: _Call) -> object:
    return call.emit("LeakyRelu", call.args["self"], alpha=float(call.args.get("negative_slope", 0.01)))


@_exports("elu.default")
def _elu(call: _Call) -> object:
    if call.args.get("scale", 1) != 1 or call.args.get("input_scale", 1) != 1:
        raise _refused(call, "scale or input_scale")
    return call.emit("Elu", call.args["self"], alpha=float(call.args.get("alpha", 1.0)))


@_exports("clamp.default", "clamp_min.default", "clamp_max.default", "hardtanh.default", "relu6.default")
def _clamp(call: _Call) -> object:
    usual = {"aten.hardtanh.default": (-1.0, 1.0), "aten.relu6.default": (0.0, 6.0)}.get(call.node.op, (None, None))
    low = call.args.get("min", call.args.get("min_val", usual[0]))
    high = call.args.get("max", call.args.get("max_val", usual[1]))
    ends = [None if end is None else torch.tensor(float(end)) for end in (low, high)]
    return call.emit("Clip", call.args["self"], *(ends if ends[1] is not None else ends[:1]))


@_exports("cat.default")
def _cat(call: _Call) -> object:
    rank = call.sample.dim()
    return call.emit("Concat", *call.args["tensors"], axis=int(call.args.get("dim", 0)) % rank)


@_exports("softmax.int", "_softmax.default")
def _softmax(call: _Call) -> object:
    return call.emit("Softmax", call.args["self"], axis=int(call.args["dim"]))


@_exports("slice.Tensor")
def _slice(call: _Call) -> object:
    a = call.args
    start, end = a.get("start") or 0, a.get("end")
    end = (1 << 62) if end is None else int(end)
    inputs = [torch.tensor([int(v)]) for v in (start, end, a.get("dim", 0), a.get("step", 1))]
    return call.emit("Slice", a["self"], *inputs)


@_exports("select.int", "index_select.default")
def _select(call: _Call) -> object:
    index = call.args["index"]
    index = index if isinstance(index, Tensor) else torch.tensor(int(index))
    return call.emit("Gather", call.args["self"], index, axis=int(call.args["dim"]))


def export_program(program: Program, name: str = "surebound") -> bytes:
    """Write the bytes of an ONNX file that computes what the program computes on one example."""
    onnx_package()
    helper, numpy_helper = (
        importlib.import_module("onnx.helper"),
        importlib.import_module("onnx.numpy_helper"),
    )
    graph = program.graph
    if graph.dtype != torch.float32:
        raise GraphError(f"the network computes in {graph.dtype}; only float32 networks are exported")
    missing = sorted({node.op for node in graph.calls(lambda n: n.varies and n.op not in EXPORTS)})
    if missing:
        raise UnsupportedOperatorError(f"these operators cannot be exported: {', '.join(missing)}")
    writer, shape = _Writer(), (1, *(int(n or 1) for n in graph.input_shape[1:]))
    known: dict[str, Any] = {**program.parameters(), graph.input: _Varying(graph.input, shape)}

    def export(node: Node, values: Env) -> Any:
        """Write a call that varies; its value on an image of zeros gives the shapes."""
        value = known[node.name] = node.run(values)
        if node.varies and isinstance(value, Tensor):
            _emit(node, known, writer, value)
            known[node.name] = _Varying(node.name, tuple(value.shape))
        return value

    with torch.no_grad():
        start = {**program.parameters(), graph.input: torch.zeros(shape)}
        out = forward(graph.steps, start, export, graph.output)[graph.output]
    info, kind = helper.make_tensor_value_info, 1  # FLOAT
    made = helper.make_graph(
        writer.nodes, name, [info(graph.input, kind, list(shape))], [info(graph.output, kind, list(out.shape))],
        [numpy_helper.from_array(_array(value), key) for key, value in writer.weights.items()],
    )  # fmt: skip
    model = helper.make_model(
        made, producer_name="surebound", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    importlib.import_module("onnx.checker").check_model(model)
    content: bytes = model.SerializeToString()
    return content


def _emit(node: Node, known: dict[str, Any], writer: _Writer, value: Tensor) -> None:
    """Write one call; an argument that its exporter does not look at must have its default value."""
    call = _Call(node, _arguments(node, known), writer, value)
    EXPORTS[node.op](call)
    usual = {argument.name: argument.default_value for argument in _schema(node).arguments}
    for name in set(call.args) - call.args.read - _BY_SHAPE:
        if dict.__getitem__(call.args, name) != usual[name]:
            raise _refused(call, f"{name}={dict.__getitem__(call.args, name)}")


def _array(value: Tensor) -> Any:
    return np.ascontiguousarray(value.detach().cpu().numpy()).reshape(tuple(value.shape))


def _arguments(node: Node, known: dict[str, Any]) -> _Arguments:
    """Return a call's arguments by the names of the operator's schema."""
    names = [argument.name for argument in _schema(node).arguments]
    args, kwargs = node.arguments(known)
    return _Arguments({**dict(zip(names, args, strict=False)), **kwargs})


def _schema(node: Node) -> Any:
    if node.op == ABOUT:
        return torch.ops.surebound.about.default._schema
    target: Any = node.target.target if isinstance(node.target, First) else node.target
    return target._schema
