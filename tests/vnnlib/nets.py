"""Small networks as ONNX, for queries."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from surebound.graph.onnx.file import Model, parse_model
from tests.vnnlib.onnx_cases import make_model


def dense(
    weights: Sequence[Sequence[Sequence[float]]],
    biases: Sequence[Sequence[float]],
    shape: Sequence[int] | None = None,
) -> bytes:
    """Fully connected layers with ReLU between them; inputs (1, n). Tensors: h0, r0, h1, ..."""
    constants, calls, last = {}, [], "x"
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        constants[f"w{i}"] = np.array(w, dtype=np.float32)
        constants[f"b{i}"] = np.array(b, dtype=np.float32)
        calls.append(("Gemm", [last, f"w{i}", f"b{i}"], [f"h{i}"], {}))
        last = f"h{i}"
        if i + 1 < len(weights):
            calls.append(("Relu", [last], [f"r{i}"], {}))
            last = f"r{i}"
    inputs = {"x": tuple(shape or (1, len(weights[0])))}
    return make_model(calls, constants, inputs, [last])


def random_dense(sizes: Sequence[int], seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    pairs = list(itertools.pairwise(sizes))
    weights = [rng.normal(size=pair) * 1.4 / np.sqrt(pair[0]) for pair in pairs]
    return dense([w.tolist() for w in weights], [(0.2 * rng.normal(size=b)).tolist() for _, b in pairs])


def model(content: bytes) -> Model:
    return parse_model(content)


IDENTITY = make_model((("Identity", ["x"], ["y"], {}),), {}, {"x": (1, 2)}, ["y"])
SUM = dense([[[1.0], [1.0]]], [[0.0]])  # y = x0 + x1
CANCEL = dense([[[1.0], [1.0], [1.0]]], [[0.0]])  # three terms whose order matters


def declare(inputs: int, outputs: int, dtype: str = "float32", name: str = "N", x: str = "X", y: str = "Y") -> str:
    return (
        f"(declare-network {name} (declare-input {x} {dtype} [1,{inputs}])"
        f" (declare-output {y} {dtype} [1,{outputs}]))\n"
    )


def between(low: Sequence[float], high: Sequence[float], x: str = "X") -> str:
    lines = [
        f"(assert (>= {x}[0,{i}] {a:.9f})) (assert (<= {x}[0,{i}] {b:.9f}))"
        for i, (a, b) in enumerate(zip(low, high, strict=True))
    ]
    return "\n".join(lines) + "\n"


VERSION = "(vnnlib-version <2.0>)\n"
