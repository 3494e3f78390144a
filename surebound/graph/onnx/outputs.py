"""One output of an ONNX file with several: the calls that it needs, and nothing else."""

from __future__ import annotations

import importlib
from typing import Any

from surebound.errors import GraphError, nearest

#: Operators that pair scores with the names of classes: what they read is what bounds are about.
_NAMING = frozenset({"ZipMap"})


def with_output(proto: Any, output: str | None, source: str) -> Any:
    """Return the model (``onnx.ModelProto``) cut to one of its tensors; None: of several outputs the one of numbers.

    Classifiers of scikit-learn have a label (a whole number or a text) beside scores: the scores are taken.
    """
    graph = proto.graph
    names = [each.name for each in graph.output]
    if output is None:
        if len(names) == 1 and not _named_by(proto, names[0]):
            return proto
        output = _scores(proto, names, source)
    inner = {name for node in graph.node for name in node.output}
    if output not in inner:
        raise GraphError(f"{source} has no output {output!r}{nearest(output, sorted(inner))} It has {', '.join(names)}")
    return _cut(proto, _named_by(proto, output) or output)


def _scores(proto: Any, names: list[str], source: str) -> str:
    """Return the one output that holds float32 numbers, or numbers by the names of classes."""
    float32 = importlib.import_module("onnx").TensorProto.FLOAT
    found: list[str] = [
        str(each.name)
        for each in proto.graph.output
        if each.type.tensor_type.elem_type == float32 or _named_by(proto, each.name)
    ]
    if len(found) != 1:
        raise GraphError(
            f"{source} has the outputs {', '.join(names)}; choose one: sb.load(path, output=NAME) or FILE#NAME"
        )
    return str(found[0])


def _named_by(proto: Any, output: str) -> str | None:
    """Return the scores that an output pairs with the names of classes; None if it does not."""
    for node in proto.graph.node:
        if node.op_type in _NAMING and output in node.output:
            return str(node.input[0])
    return None


def _cut(proto: Any, output: str) -> Any:
    """Return a copy of the model with this output alone."""
    onnx = importlib.import_module("onnx")
    cut = onnx.ModelProto()
    cut.CopyFrom(proto)
    needed, kept = {output}, []
    for node in reversed(proto.graph.node):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(node.input)
    del cut.graph.node[:]
    cut.graph.node.extend(reversed(kept))
    declared = [each for each in (*proto.graph.output, *proto.graph.value_info) if each.name == output]
    del cut.graph.output[:]
    cut.graph.output.extend(declared[:1] or [onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)])
    weights = [each for each in proto.graph.initializer if each.name in needed]
    del cut.graph.initializer[:]
    cut.graph.initializer.extend(weights)
    domains = {node.domain for node in kept}
    versions = [each for each in proto.opset_import if each.domain in (*domains, "", "ai.onnx")]
    del cut.opset_import[:]
    cut.opset_import.extend(versions)
    return cut
