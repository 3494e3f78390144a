"""ONNX files: read, unpack and check one before anything of it is believed."""

from __future__ import annotations

import gzip
import importlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from surebound.errors import GraphError, MissingExtraError, first_line

OLDEST_OPSET = 7
NEWEST_OPSET = 26

#: Most bytes that a file may unpack to: protocol buffers end at 2 GiB, too.
LARGEST_FILE = 1 << 31

#: Most entries that a tensor computed while importing may have: a file of a few bytes must not take all memory.
LARGEST_TENSOR = 1 << 28


def onnx_package() -> Any:
    """Import the ``onnx`` package, or raise an error that says how to get it."""
    try:
        return importlib.import_module("onnx")
    except ImportError:
        raise MissingExtraError("onnx", "onnx", "reading and writing ONNX files") from None


@dataclass(frozen=True, eq=False)
class InputInfo:
    """A declared input: its name, shape with 1 where the batch size stands, and element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # ONNX's name: "float32"


@dataclass(frozen=True, eq=False)
class Model:
    """A parsed model file. ``proto`` is the ``onnx.ModelProto``; everything else is read from it."""

    source: str
    proto: Any
    content: bytes
    opset: int
    inputs: tuple[InputInfo, ...]
    outputs: tuple[tuple[str, str], ...]  # names and element types; what shape they have is computed
    weights: Mapping[str, Tensor]

    @property
    def nodes(self) -> Any:
        """The calls, in the file's order, which is an order of execution."""
        return self.proto.graph.node


def read_bytes(path: str | Path, limit: int = LARGEST_FILE) -> bytes:
    """Read a file's content; unpacked if it starts as gzip does, whatever its name."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not packed:
                content = file.read(limit + 1)
            else:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    content = unpacked.read(limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise GraphError(f"{path} cannot be read: {error}") from error
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    if len(content) > limit:
        raise GraphError(f"{path} holds more than {limit} bytes; that is no file of this kind")
    return content


def read_model(path: str | Path) -> Model:
    """Read and check an ONNX file, plain or gzip."""
    return parse_model(read_bytes(path), str(path))


def parse_model(content: bytes, source: str = "the model", choose: Callable[[Any], Any] | None = None) -> Model:
    """Check the bytes of an ONNX file. Nothing of it is run. ``choose`` takes what is wanted of its ``ModelProto``."""
    onnx = onnx_package()
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
        if not proto.HasField("graph"):
            raise ValueError("it holds no graph")
        onnx.checker.check_model(proto, full_check=False)
    except Exception as error:  # whatever protocol buffers and the checker raise on a damaged file
        raise GraphError(f"{source} is no valid ONNX model: {first_line(error)}") from error
    if choose is not None:
        proto = choose(proto)
        content = proto.SerializeToString()
    opset = _opset(proto, source)
    for each in proto.graph.initializer:
        if each.data_location == onnx.TensorProto.EXTERNAL:
            raise GraphError(
                f"{source} keeps the tensor {each.name!r} in another file; save the model as one file "
                "(onnx.save(model, path, save_as_external_data=False))"
            )
    if len(proto.graph.sparse_initializer):
        raise GraphError(f"{source} has sparse weights; store them as dense tensors")
    weights = {each.name: tensor_of(each, source) for each in proto.graph.initializer}
    inputs = tuple(_declared(each, source) for each in proto.graph.input if each.name not in weights)
    outputs = tuple((each.name, type_name(each.type.tensor_type.elem_type)) for each in proto.graph.output)
    if not inputs or not outputs:
        raise GraphError(f"{source} has {len(inputs)} inputs and {len(outputs)} outputs; it needs one of each")
    return Model(source, proto, content, opset, inputs, outputs, weights)


def tensor_of(proto: Any, source: str) -> Tensor:
    """Convert a ``TensorProto`` to a tensor of exactly its numbers."""
    kind = type_name(proto.data_type)
    try:
        array = importlib.import_module("onnx.numpy_helper").to_array(proto)
    except Exception as error:
        raise GraphError(f"{source}: the tensor {proto.name!r} cannot be read: {first_line(error)}") from error
    if kind not in ("float32", "int64", "int32", "bool", "float64", "int8", "uint8"):
        raise GraphError(
            f"{source}: the tensor {proto.name!r} is {kind}; weights are taken as the float32 that they are, "
            "so convert the model to float32"
        )
    return torch.from_numpy(array.copy())


def type_name(code: int) -> str:
    """Return ONNX's own name of an element type: 1 -> "float32"."""
    onnx = onnx_package()
    try:
        name = str(onnx.TensorProto.DataType.Name(code)).lower()
    except ValueError:
        return f"type {code}"
    return {"float": "float32", "double": "float64"}.get(name, name)


def _opset(proto: Any, source: str) -> int:
    found = {each.domain: each.version for each in proto.opset_import}
    foreign = sorted(
        {f"{node.domain}.{node.op_type}" for node in proto.graph.node if node.domain not in ("", "ai.onnx")}
    )
    if foreign:
        hint = "; quantise in the QDQ format" if any(name.startswith("com.microsoft.Q") for name in foreign) else ""
        if any(name.startswith("ai.onnx.ml.") for name in foreign):
            hint += "; linear models of scikit-learn are networks for sb.load and images, not for queries"
        raise GraphError(f"{source} uses the operators {', '.join(foreign)}; only those of ONNX itself are known{hint}")
    if len(proto.functions):
        raise GraphError(f"{source} defines functions of its own; inline them (onnx.inliner.inline_local_functions)")
    opset = found.get("", found.get("ai.onnx", 0))
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise GraphError(
            f"{source} is written for opset {opset}; {OLDEST_OPSET} to {NEWEST_OPSET} are supported: "
            "convert it with onnx.version_converter"
        )
    return int(opset)


def _declared(value: Any, source: str) -> InputInfo:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise GraphError(f"{source}: {value.name!r} has no tensor type with a shape")
    shape = [each.dim_value if each.HasField("dim_value") else 0 for each in kind.shape.dim]
    if shape and shape[0] <= 0:
        shape[0] = 1  # a free batch size: the network is taken example by example
    if any(size <= 0 for size in shape):
        sizes = ", ".join(each.dim_param or str(each.dim_value) for each in kind.shape.dim)
        raise GraphError(f"{source}: {value.name!r} has shape [{sizes}]; every axis but the first needs a fixed size")
    return InputInfo(value.name, tuple(shape), type_name(kind.elem_type))
