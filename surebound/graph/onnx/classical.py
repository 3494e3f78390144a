"""Operators of ONNX's second domain, ai.onnx.ml, as scikit-learn's converters write them, in terms of the first's.

The result is compared with the file as it was, run by onnxruntime, before anything is believed (vnnlib/files.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from surebound.errors import GraphError

DOMAIN = "ai.onnx.ml"

#: What is computed of the scores, by the name that the attribute post_transform has for it.
_AFTERWARDS = {"NONE": None, "LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}


def rewritten(proto: Any, source: str) -> Any:
    """Return a model (``onnx.ModelProto``) without operators of ai.onnx.ml; the same one if it has none."""
    if not any(node.domain == DOMAIN for node in proto.graph.node):
        return proto
    unknown = sorted({node.op_type for node in proto.graph.node if node.domain == DOMAIN} - set(_REWRITES))
    if unknown:
        raise GraphError(
            f"{source} uses {', '.join(unknown)} of {DOMAIN}; known of these are {', '.join(sorted(_REWRITES))}. Trees"
            ", kernels and names of classes have no bounds here: take a linear model or a network, and its scores"
        )
    made = type(proto)()
    made.CopyFrom(proto)
    del made.graph.node[:]
    for number, node in enumerate(proto.graph.node):
        if node.domain != DOMAIN:
            made.graph.node.append(node)
            continue
        writer = _Rewriting(node, f"{node.op_type}_{number}", source)
        _REWRITES[node.op_type](writer)
        made.graph.node.extend(writer.nodes)
        made.graph.initializer.extend(writer.weights)
    kept = [each for each in made.opset_import if each.domain != DOMAIN]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    return made


@dataclass
class _Rewriting:
    """Calls and weights that take the place of one call."""

    node: Any
    name: str
    source: str
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The call's attributes; texts as text."""
        helper = importlib.import_module("onnx.helper")
        found = {each.name: helper.get_attribute_value(each) for each in self.node.attribute}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}

    def refuse(self, why: str) -> GraphError:
        """Return the error for what is not rewritten."""
        return GraphError(f"{self.source}: {self.node.op_type}: {why}")

    def weight(self, value: Any) -> str:
        """Add a float32 constant and return its name."""
        name = f"{self.name}_w{len(self.weights)}"
        array = np.asarray(value, dtype=np.float32)
        self.weights.append(importlib.import_module("onnx.numpy_helper").from_array(array, name))
        return name

    def call(self, op: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        """Add a call and return the name of its result."""
        name = output or f"{self.name}_{len(self.nodes)}"
        self.nodes.append(importlib.import_module("onnx.helper").make_node(op, list(inputs), [name], **attributes))
        return name


def _scaler(w: _Rewriting) -> None:
    offset, scale = w.attributes.get("offset", [0.0]), w.attributes.get("scale", [1.0])
    moved = w.call("Sub", [w.node.input[0], w.weight(offset)])
    w.call("Mul", [moved, w.weight(scale)], w.node.output[0])


def _normalizer(w: _Rewriting) -> None:
    norm = w.attributes.get("norm", "MAX")
    if norm != "L1":  # the others are computed by formulas that round otherwise than the ones we would write
        raise w.refuse(f"norm={norm!r}; L1, which converters write behind probabilities, is known")
    total = w.call("ReduceL1", [w.node.input[0]], axes=[-1], keepdims=1)
    w.call("Div", [w.node.input[0], total], w.node.output[0])


def _scores(w: _Rewriting, names: tuple[str, str], output: str, count: int | None = None) -> None:
    """Write x W^T + b and what is computed of it."""
    weights, shifts = (np.asarray(w.attributes.get(name, []), np.float32) for name in names)
    after = w.attributes.get("post_transform", "NONE")
    if after not in _AFTERWARDS:
        raise w.refuse(f"post_transform={after!r}; give one of {', '.join(_AFTERWARDS)}")
    rows = len(shifts) if len(shifts) else count or 1
    if count is not None and rows != count:
        raise w.refuse(f"{rows} rows of weights for {count} classes; write one row for each class")
    if not len(weights) or len(weights) % rows:
        raise w.refuse(f"{len(weights)} weights are no {rows} rows")
    found = w.call("MatMul", [w.node.input[0], w.weight(weights.reshape(rows, -1).T)])
    if len(shifts):
        found = w.call("Add", [found, w.weight(shifts)])
    op = _AFTERWARDS[after]
    w.call(op or "Identity", [found], output, **({"axis": -1} if op == "Softmax" else {}))


def _linear_classifier(w: _Rewriting) -> None:
    labels = w.attributes.get("classlabels_ints") or w.attributes.get("classlabels_strings") or []
    _scores(w, ("coefficients", "intercepts"), w.node.output[1], len(labels))


def _linear_regressor(w: _Rewriting) -> None:
    _scores(w, ("coefficients", "intercepts"), w.node.output[0])


_REWRITES: dict[str, Callable[[_Rewriting], None]] = {
    "Scaler": _scaler,
    "Normalizer": _normalizer,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
}
